"""What a client has to see behind the gateway, by the names of `/mcp`, and the checks that it has to come to."""

EVERYTHING_CALLS = [
    ("echo", {"message": "hello"}, "hello"),
    ("get-sum", {"a": 2, "b": 40}, "42"),
    ("get-tiny-image", {}, "image"),
    ("get-structured-content", {"location": "Chicago"}, "temperature"),
    ("get-annotated-message", {"messageType": "success", "includeImage": True}, "success"),
    ("get-resource-links", {"count": 2}, ""),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}, ""),
    ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, "completed"),
]
GOOD_CALLS = [
    ("echo", {"text": "hello"}, "echo: hello"),
    ("add", {"a": 2, "b": 40}, "sum: 42"),
    ("join", {"words": ["a", "b"]}, "joined: a-b"),
    ("weather", {"city": "Paris"}, "21.5"),
    ("picture", {}, "a picture"),
    ("nothing", {}, "nothing: done"),
]
TEXTS = [
    ("a number as text", ["results__add", {"a": "2", "b": "40"}], "sum: 42"),
    ("a list as text", ["results__join", {"words": '["a", "b"]'}], "joined: a-b"),
]
AGENT = {
    "check": "agent: all tools before a model with OpenAI's rules",
    "questions": [
        {"name": "odd__echo", "asks": 'Call odd__echo with {"text": "from an agent"}', "says": "echo: from an agent"},
        {"name": "results__add", "asks": 'Call results__add with {"a": 2, "b": 40}', "says": "sum: 42"},
        {"name": "everything__get-sum", "asks": 'Call everything__get-sum with {"a": 2, "b": 40}', "says": "42"},
    ],
}
VALID = {
    "check": "valid: each item by the types of the client",
    "lists": {
        "tools/list": "tools",
        "prompts/list": "prompts",
        "resources/list": "resources",
        "resources/templates/list": "resourceTemplates",
    },
}


def odd(names):
    return [f"odd__{name}" for name in names]


def listed(check, of, names):
    return {"check": check, "of": of, "names": names}


def calls(check, by, *these):
    """Calls by one ability of a client: each has a name, the arguments of that ability, and what it has to say."""
    return {"check": check, "by": by, "calls": [{"name": name, "with": with_, "says": says} for name, with_, says in these]}


def lists(expected):
    kept = expected["kept"]
    good = [f"everything__{name}" for name, _, _ in EVERYTHING_CALLS] + odd(expected["good"])
    good += [f"results__{name}" for name in [*expected["good"], *expected["results"]]]
    static = "demo://resource/static/document/features.md"
    optional = "those with a malformed optional member"
    return [
        listed("tools: all good ones", "tools", good),
        listed(f"tools: {optional}", "tools", odd(kept["tools"])),
        {**listed("tools: each name once, and none too long", "tools", []), "unique": True, "longest": 48},
        listed("prompts: all good ones", "prompts", ["everything__simple-prompt", "everything__args-prompt", *odd(expected["prompts"])]),
        listed(f"prompts: {optional}", "prompts", odd(kept["prompts"])),
        listed("resources: all good ones", "resources", [*expected["resources"], static]),
        listed(f"resources: {optional}", "resources", [f"bad://{kind}" for kind in kept["resources"]]),
        listed("templates: all good ones", "templates", expected["templates"]),
        listed(f"templates: {optional}", "templates", [f"bad://{kind}/{{id}}" for kind in kept["templates"]]),
    ]


def neighbours(servers):
    """The good item of each server that has malformed ones beside it."""
    beside = "beside malformed ones"
    return [
        listed(f"neighbours: tools {beside}", "tools", [f"{server}__neighbour" for server in servers]),
        listed(f"neighbours: prompts {beside}", "prompts", [f"{server}__neighbour" for server in servers]),
        listed(f"neighbours: resources {beside}", "resources", [f"neighbour://{server}" for server in servers]),
        listed(f"neighbours: templates {beside}", "templates", [f"neighbour://{server}/{{id}}" for server in servers]),
    ]


def all_calls(expected):
    good = [(f"everything__{name}", [f"everything__{name}", arguments], says) for name, arguments, says in EVERYTHING_CALLS]
    good += [(f"odd__{name}", [f"odd__{name}", arguments], says) for name, arguments, says in GOOD_CALLS]
    optional = [(name, [name, {}], "answered") for name in odd(expected["kept"]["tools"])]
    results = [(name, [f"results__{name}", {}], says) for name, says in expected["results"].items()]
    big, neighbour = expected["big"], expected["neighbour"]
    prompts = [(kind, [f"results__{kind}", {}], neighbour) for kind in expected["prompt results"]]
    reads = [(uri, [uri], neighbour) for uri in expected["read results"]]
    return [
        calls("call: each good tool", "call", *good),
        calls("call: tools with a malformed optional member", "call", *optional),
        calls("call: arguments as text", "call", *TEXTS),
        calls("call: malformed results, what is good in them", "call", *(one for one in results if one[2] not in (None, big))),
        calls("call: malformed results end", "ends", *((name, with_, "") for name, with_, says in results if says is None)),
        # It may arrive as an error of the tool, which is an exception in some clients: what counts is that the words do.
        {**calls("call: 3 MB, cut", "call", *(one for one in results if one[2] == big)), "or error": True},
        calls(
            "prompts: get",
            "prompt",
            ("odd__greet", ["odd__greet", {"who": "Ada"}], "Hello, Ada!"),
            ("everything__simple-prompt", ["everything__simple-prompt", {}], "simple prompt"),
        ),
        calls(
            "resources: read",
            "read",
            ("good://text", ["good://text"], "text of good://text"),
            ("good://item/7", ["good://item/7"], "text of good://item/7"),
        ),
        calls("prompts: malformed results, what is good in them", "prompt", *prompts),
        calls("resources: malformed results, what is good in them", "read", *reads),
    ]


def plan_of(expected, model, neighbours_url, servers):
    """All of it, for drive.py and drive.mjs; `expected` is what malformed.py says."""
    return {
        "model": model,
        "neighbours": neighbours_url,
        "lists": lists(expected),
        "calls": all_calls(expected),
        "many": {"check": "call: 20 at once", "name": "results__echo"},
        "agent": AGENT,
        "neighbour lists": neighbours(servers),
        "valid": VALID,
    }


def due(can, plan):
    """The checks that a client with these abilities has to come to."""
    beside = plan["neighbour lists"] if plan["neighbours"] else []
    checks = ["connect"] + [one["check"] for one in plan["lists"] + beside if one["of"] in can]
    by = {"call": "calls", "ends": "calls", "prompt": "prompts", "read": "resources"}
    checks += [one["check"] for one in plan["calls"] if by[one["by"]] in can]
    if "calls" in can:
        checks.append(plan["many"]["check"])
    if "agent" in can:
        checks.append(plan["agent"]["check"])
    if "valid" in can and plan["neighbours"]:
        checks.append(plan["valid"]["check"])
    return checks
