"""Malformed items, by kind: in each exactly one thing is wrong.

`kept` says that only an optional member is wrong, or that the item has one sensible reading: a client has to get it, without that
member or in that reading. All other items may be mended or left out, but nothing beside them.
"""

TEXT = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"text": TEXT}}
# The published drafts of JSON Schema, as servers write them.
DIALECTS = {
    "3": "http://json-schema.org/draft-03/schema#",
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "7-https": "https://json-schema.org/draft-07/schema",
    "2019": "https://json-schema.org/draft/2019-09/schema",
    "2020": "https://json-schema.org/draft/2020-12/schema",
    "2020-http": "http://json-schema.org/draft/2020-12/schema#",
}
LONG = "n" * 200
# What the text of a result over any limit begins with.
BIG = "it begins here"
NOTHING = object()


def _items(base, kinds, kept):
    """Kinds by name, from a base item and what each changes in it; NOTHING takes a member out."""
    made = {}
    for kind, change in kinds.items():
        if isinstance(change, dict):
            item = {**base(kind), **change}
            change = {key: value for key, value in item.items() if value is not NOTHING}
        made[kind] = {"items": change if isinstance(change, tuple) else [change], "kept": kept}
    return made


def _tool(kind):
    return {"name": kind, "description": f"Malformed: {kind}.", "inputSchema": SCHEMA}


def _with(**schema):
    return {"inputSchema": {**SCHEMA, **schema}}


# Optional members that tools, prompts, resources and templates have in common.
COMMON = {
    "title-null": {"title": None},
    "title-number": {"title": 5},
    "description-null": {"description": None},
    "description-list": {"description": ["one", "two"]},
    "meta-null": {"_meta": None},
    "meta-text": {"_meta": "text"},
    "meta-list": {"_meta": []},
    "icons-null": {"icons": None},
    "icons-object": {"icons": {"src": "https://example.com/i.png"}},
    "icon-without-src": {"icons": [{"mimeType": "image/png"}]},
    "icon-src-number": {"icons": [{"src": 5}]},
    "icon-null": {"icons": [None]},
    "icon-sizes-text": {"icons": [{"src": "https://example.com/i.png", "sizes": "48x48"}]},
    "icon-theme-unknown": {"icons": [{"src": "https://example.com/i.png", "theme": "pink"}]},
}


def _common(of):
    return {f"{of}-{kind}": change for kind, change in COMMON.items()}


TOOLS = _items(
    _tool,
    {
        **_common("tool"),
        "annotations-null": {"annotations": None},
        "annotations-text": {"annotations": "read-only"},
        "annotations-list": {"annotations": []},
        "hint-text": {"annotations": {"readOnlyHint": "yes"}},
        "hint-null": {"annotations": {"destructiveHint": None}},
        "annotation-title-null": {"annotations": {"title": None, "readOnlyHint": True}},
        "execution-null": {"execution": None},
        "execution-text": {"execution": "forbidden"},
        "task-support-unknown": {"execution": {"taskSupport": "sometimes"}},
        "task-support-null": {"execution": {"taskSupport": None}},
        "output-null": {"outputSchema": None},
        "output-text": {"outputSchema": "object"},
        "output-list": {"outputSchema": []},
        "output-empty": {"outputSchema": {}},
        "output-no-type": {"outputSchema": {"properties": {"text": TEXT}}},
        "output-type-unknown": {"outputSchema": {"type": "thing"}},
        "output-properties-null": {"outputSchema": {"type": "object", "properties": None}},
        "output-required-null": {"outputSchema": {"type": "object", "required": None}},
        "schema-no-type": {"inputSchema": {"properties": {"text": TEXT}}},
        "schema-empty": {"inputSchema": {}},
        "properties-null": _with(properties=None),
        "properties-list": _with(properties=[]),
        "required-null": _with(required=None),
        "required-text": _with(required="text"),
        "required-boolean": _with(required=True),
        "property-true": _with(properties={"text": True}),
        "property-null": _with(properties={"text": None}),
        "property-text": _with(properties={"text": "string"}),
        "property-type-null": _with(properties={"text": {"type": None}}),
        "property-type-unknown": _with(properties={"text": {"type": "str"}}),
        "property-required": _with(properties={"text": {"type": "string", "required": True}}),
        "enum-null": _with(properties={"text": {"type": "string", "enum": None}}),
        "items-null": _with(properties={"texts": {"type": "array", "items": None}}),
        "pattern-broken": _with(properties={"text": {"type": "string", "pattern": "("}}),
        "reference-broken": _with(properties={"text": {"$ref": "#/$defs/none"}}),
        "additional-null": _with(additionalProperties=None),
        "definitions-null": _with(**{"$defs": None}),
        "dialect-unknown": _with(**{"$schema": "https://example.com/none"}),
        "dialect-unknown-below": _with(properties={"text": {**TEXT, "$schema": "https://example.com/none"}}),
        "dialect-null": _with(**{"$schema": None}),
        **{f"dialect-{draft}": _with(**{"$schema": dialect}) for draft, dialect in DIALECTS.items()},
        "output-dialect-unknown": {"outputSchema": {**SCHEMA, "$schema": "https://example.com/none"}},
        **{f"output-dialect-{draft}": {"outputSchema": {**SCHEMA, "$schema": dialect}} for draft, dialect in DIALECTS.items()},
        "member-unknown": {"zebra": {"a": None}},
    },
    kept=True,
) | _items(
    _tool,
    {
        # It fits the new era, and no result of this tool.
        "output-type-text": {"outputSchema": {"type": "string"}},
        "schema-missing": {"inputSchema": NOTHING},
        "schema-null": {"inputSchema": None},
        "schema-text": {"inputSchema": "object"},
        "schema-list": {"inputSchema": []},
        "schema-true": {"inputSchema": True},
        "type-text": {"inputSchema": {"type": "string"}},
        "type-list": {"inputSchema": {"type": ["object"]}},
        "type-null": {"inputSchema": {"type": None}},
        "tool-name-missing": {"name": NOTHING},
        "tool-name-null": {"name": None},
        "tool-name-number": {"name": 5},
        "tool-name-empty": {"name": ""},
        "tool-name-odd": {"name": "odd näme/with\n things"},
        "tool-name-long": {"name": LONG},
        "tool-twice": tuple({**_tool("twice"), "title": title} for title in ("One", "Two")),
        "tool-null": None,
        "tool-text": "text",
        "tool-list": [],
    },
    kept=False,
)

PROMPTS = _items(
    lambda kind: {"name": kind, "description": f"Malformed: {kind}."},
    {
        **_common("prompt"),
        "arguments-null": {"arguments": None},
        "arguments-object": {"arguments": {"who": {"required": True}}},
        "argument-null": {"arguments": [None]},
        "argument-without-name": {"arguments": [{"description": "Who."}]},
        "argument-name-null": {"arguments": [{"name": None}]},
        "argument-description-null": {"arguments": [{"name": "who", "description": None}]},
        "argument-required-text": {"arguments": [{"name": "who", "required": "yes"}]},
        "argument-required-null": {"arguments": [{"name": "who", "required": None}]},
    },
    kept=True,
) | _items(
    lambda kind: {"name": kind, "description": f"Malformed: {kind}."},
    {
        "prompt-name-missing": {"name": NOTHING},
        "prompt-name-null": {"name": None},
        "prompt-name-number": {"name": 5},
        "prompt-name-long": {"name": LONG},
        "prompt-twice": ({"name": "twice"}, {"name": "twice"}),
        "prompt-null": None,
        "prompt-text": "text",
    },
    kept=False,
)

RESOURCES = _items(
    lambda kind: {"uri": f"bad://{kind}", "name": kind},
    {
        **_common("resource"),
        "mime-null": {"mimeType": None},
        "mime-number": {"mimeType": 5},
        "size-text": {"size": "12 KB"},
        "size-null": {"size": None},
        "audience-unknown": {"annotations": {"audience": ["robot"]}},
        "audience-text": {"annotations": {"audience": "user"}},
        "priority-text": {"annotations": {"priority": "high"}},
        "priority-five": {"annotations": {"priority": 5}},
        "modified-null": {"annotations": {"lastModified": None}},
        "resource-annotations-null": {"annotations": None},
        "resource-annotations-text": {"annotations": "text"},
        "resource-name-missing": {"name": NOTHING},
        "resource-name-null": {"name": None},
    },
    kept=True,
) | _items(
    lambda kind: {"uri": f"bad://{kind}", "name": kind},
    {
        "uri-without-scheme": {"uri": "notes/today.txt"},
        "uri-missing": {"uri": NOTHING},
        "uri-null": {"uri": None},
        "uri-number": {"uri": 5},
        "uri-empty": {"uri": ""},
        "resource-twice": ({"uri": "bad://twice", "name": "one"}, {"uri": "bad://twice", "name": "two"}),
        "resource-null": None,
        "resource-text": "text",
    },
    kept=False,
)

TEMPLATES = _items(
    lambda kind: {"uriTemplate": f"bad://{kind}/{{id}}", "name": kind},
    {
        **_common("template"),
        "template-mime-null": {"mimeType": None},
        "template-audience-unknown": {"annotations": {"audience": ["robot"]}},
        "template-name-missing": {"name": NOTHING},
    },
    kept=True,
) | _items(
    lambda kind: {"uriTemplate": f"bad://{kind}/{{id}}", "name": kind},
    {
        "template-uri-missing": {"uriTemplate": NOTHING},
        "template-uri-null": {"uriTemplate": None},
        "template-uri-broken": {"uriTemplate": "bad://broken/{id"},
        "template-null": None,
    },
    kept=False,
)

GOOD = {"type": "text", "text": "a good neighbour"}
NEIGHBOUR = "a good neighbour"
OBJECT = {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}
LINK = {"type": "resource_link", "uri": "good://text"}


def _results(says, **kinds):
    """Results by kind, and what the client has to be told whatever becomes of the rest; None: the call has to end, no more."""
    return {kind.replace("_", "-"): {"result": result, "says": says} for kind, result in kinds.items()}


def _schema(kinds, schema=OBJECT):
    return {kind: {**of, "outputSchema": schema} for kind, of in kinds.items()}


def _beside(*blocks):
    return {"content": [GOOD, *blocks]}


RESULTS = (
    _results(
        NEIGHBOUR,
        noise=_beside(),
        text_number=_beside({"type": "text", "text": 5}),
        text_null=_beside({"type": "text", "text": None}),
        text_missing=_beside({"type": "text"}),
        block_unknown=_beside({"type": "video", "data": "AAAA", "mimeType": "video/mp4"}),
        block_null=_beside(None),
        block_text=_beside("text"),
        block_list=_beside([]),
        block_without_type=_beside({"text": "no type"}),
        image_without_mime=_beside({"type": "image", "data": "AAAA"}),
        image_without_data=_beside({"type": "image", "mimeType": "image/png"}),
        image_data_null=_beside({"type": "image", "data": None, "mimeType": "image/png"}),
        audio_without_mime=_beside({"type": "audio", "data": "AAAA"}),
        resource_null=_beside({"type": "resource", "resource": None}),
        resource_without_uri=_beside({"type": "resource", "resource": {"text": "text"}}),
        resource_without_text=_beside({"type": "resource", "resource": {"uri": "good://text"}}),
        link_without_name=_beside(LINK),
        link_without_uri=_beside({"type": "resource_link", "name": "text"}),
        block_audience_unknown=_beside({**GOOD, "annotations": {"audience": ["robot"]}}),
        block_annotations_null=_beside({**GOOD, "annotations": None}),
        block_meta_text=_beside({**GOOD, "_meta": "text"}),
        block_meta_null=_beside({**GOOD, "_meta": None}),
        content_text={"content": NEIGHBOUR},
        content_object={"content": GOOD},
        meta_text={**_beside(), "_meta": "text"},
        meta_null={**_beside(), "_meta": None},
        error_text={**_beside(), "isError": "false"},
        error_null={**_beside(), "isError": None},
        structured_text={**_beside(), "structuredContent": NEIGHBOUR},
        structured_null={**_beside(), "structuredContent": None},
        structured_list={**_beside(), "structuredContent": [NEIGHBOUR]},
        member_unknown={**_beside(), "zebra": {"a": None}},
    )
    | _results(
        None,
        content_null={"content": None},
        content_missing={"a": 1},
        result_empty={},
        result_null={"whole answer": {"result": None}},
        result_text={"whole answer": {"result": "text"}},
        result_list={"whole answer": {"result": []}},
        answer_empty={"whole answer": {}},
        answer_both={"whole answer": {"result": _beside(), "error": {"code": 1, "message": "both"}}},
        failure_text={"whole answer": {"error": "text"}},
        failure_null={"whole answer": {"error": None}},
        failure_without_code={"whole answer": {"error": {"message": "no code"}}},
        failure_without_message={"whole answer": {"error": {"code": -32000}}},
        failure_code_text={"whole answer": {"error": {"code": "E1", "message": "a text"}}},
    )
    | _schema(
        _results(
            None,
            structured_missing=_beside(),
            structured_other={**_beside(), "structuredContent": {"text": 5}},
            structured_null_of_schema={**_beside(), "structuredContent": None},
            only_structured={"structuredContent": {"text": "text"}},
        )
    )
    | _schema(
        _results(
            BIG,
            big={"content": [{"type": "text", "text": BIG + "x" * 3_000_000}], "structuredContent": {"text": BIG + "x" * 3_000_000}},
        )
    )
    | _results(BIG, big_without_schema={"content": [{"type": "text", "text": BIG + "x" * 3_000_000}]})
)

GOOD_MESSAGE = {"role": "user", "content": GOOD}


def _messages(*messages):
    return {"messages": [GOOD_MESSAGE, *messages]}


# Results of prompts/get, by the name of the prompt; in each is a good message.
PROMPT_RESULTS = {
    "message-null": _messages(None),
    "message-text": _messages("text"),
    "message-role-unknown": _messages({"role": "system", "content": GOOD}),
    "message-role-missing": _messages({"content": GOOD}),
    "message-content-text": _messages({"role": "user", "content": "text"}),
    "message-content-list": _messages({"role": "user", "content": [GOOD]}),
    "message-content-null": _messages({"role": "user", "content": None}),
    "message-block-unknown": _messages({"role": "user", "content": {"type": "video", "data": "AAAA"}}),
    "get-description-null": {**_messages(), "description": None},
    "get-description-list": {**_messages(), "description": ["text"]},
    "get-meta-text": {**_messages(), "_meta": "text"},
    "get-meta-null": {**_messages(), "_meta": None},
    "get-messages-object": {"messages": GOOD_MESSAGE},
}

GOOD_CONTENT = {"uri": "result://good", "text": NEIGHBOUR}


def _contents(*contents):
    return {"contents": [GOOD_CONTENT, *contents]}


# Results of resources/read, by the end of the URI; in each is a good content.
READ_RESULTS = {
    "read-null": _contents(None),
    "read-text": _contents("text"),
    "read-uri-missing": _contents({"text": "text"}),
    "read-uri-null": _contents({"uri": None, "text": "text"}),
    "read-text-missing": _contents({"uri": "result://bad"}),
    "read-text-number": _contents({"uri": "result://bad", "text": 5}),
    "read-blob-null": _contents({**GOOD_CONTENT, "blob": None}),
    "read-mime-null": _contents({**GOOD_CONTENT, "mimeType": None}),
    "read-meta-text": _contents({**GOOD_CONTENT, "_meta": "text"}),
    "read-result-meta-null": {**_contents(), "_meta": None},
    "read-contents-object": {"contents": GOOD_CONTENT},
}
