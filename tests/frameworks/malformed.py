"""A stdio MCP server, in the standard library of Python alone: good items, and one of each malformed kind beside them.

usage: python malformed.py                  good items, and malformed ones of all kinds between them
       python malformed.py --kinds NAME,..  one good item of each list (`neighbour`), and these kinds
       python malformed.py --results        good tools, and tools, prompts and resources whose results are malformed
       python malformed.py --expected       what a client has to see of all this, as JSON (run.py says how it is used)

`kinds.py` has the malformed items. It checks nothing of what it is asked: that is the gateway's business.
"""

import json
import sys

from kinds import BIG, NEIGHBOUR, PROMPT_RESULTS, PROMPTS, READ_RESULTS, RESOURCES, RESULTS, TEMPLATES, TOOLS

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TEXT = {"type": "string"}


def tool(name, properties, required=(), **more):
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, **more}


def answer(text, **more):
    return {"content": [{"type": "text", "text": text}], **more}


CELSIUS = {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]}
GOOD_TOOLS = [
    tool("echo", {"text": TEXT}, ["text"]),
    tool("add", {"a": {"type": "integer"}, "b": {"type": "integer"}}, ["a", "b"]),
    tool("join", {"words": {"type": "array", "items": TEXT}}, ["words"]),
    tool("weather", {"city": TEXT}, ["city"], outputSchema=CELSIUS),
    tool("picture", {}),
    tool("nothing", {}),
]


def call_good(name, arguments):
    if name == "echo":
        return answer(f"echo: {arguments.get('text')}")
    if name == "add":  # As the Python SDK does, a text that is a number is one.
        return answer(f"sum: {int(arguments['a']) + int(arguments['b'])}")
    if name == "join":
        words = arguments["words"]
        return answer("joined: " + "-".join(json.loads(words) if isinstance(words, str) else words))
    if name == "weather":
        return answer("it has 21.5 degrees", structuredContent={"celsius": 21.5})
    if name == "picture":
        return {"content": [*answer("a picture")["content"], {"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    if name == "nothing":
        return answer("nothing: done")
    if name == "neighbour":
        return answer("a good neighbour")
    return None


GOOD_PROMPT = {"name": "greet", "description": "Greets somebody.", "arguments": [{"name": "who", "required": True}]}
GOOD_RESOURCE = {"uri": "good://text", "name": "text", "mimeType": "text/plain"}
GOOD_TEMPLATE = {"uriTemplate": "good://item/{id}", "name": "item"}


def result_tool(kind):
    """The tool whose result is of a kind; some kinds need an output schema to be one."""
    of = RESULTS[kind]
    more = {"outputSchema": of["outputSchema"]} if "outputSchema" in of else {}
    return tool(f"result-{kind}", {}, **more)


class Server:
    """What is listed: all kinds, or some with good neighbours, or none and the tools whose results are malformed."""

    def __init__(self, only=None, results=False):
        lists = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES, "resourceTemplates": TEMPLATES}
        if results:
            only = []
            prompts = [{"name": kind} for kind in PROMPT_RESULTS]
            resources = [{"uri": f"result://{kind}", "name": kind} for kind in READ_RESULTS]
            good = [GOOD_TOOLS + [result_tool(of) for of in RESULTS], prompts, resources, []]
        elif only is None:
            good = [GOOD_TOOLS, [GOOD_PROMPT], [GOOD_RESOURCE], [GOOD_TEMPLATE]]
        else:
            good = [
                [tool("neighbour", {})],
                [{"name": "neighbour"}],
                [{"uri": f"neighbour://{only[0]}", "name": "neighbour"}],
                [{"uriTemplate": f"neighbour://{only[0]}/{{id}}", "name": "neighbour"}],
            ]
        self.lists = {}
        for (list_name, kinds), good in zip(lists.items(), good):
            bad = [item for of in kinds if only is None or of in only for item in kinds[of]["items"]]
            # A bad item first: one that ends the reading of a list is to end it before all that is good.
            self.lists[list_name] = bad + good

    def answer(self, method, params):
        if method == "initialize":
            has = {"tools": {}, "prompts": {}, "resources": {}}
            info = {"name": "malformed", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": has, "serverInfo": info}
        if method.endswith("/list"):
            name = {"resources/templates/list": "resourceTemplates"}.get(method, method.split("/")[0])
            return {name: self.lists.get(name, [])}
        if method == "tools/call":
            return self.call(params["name"], params.get("arguments") or {})
        if method == "prompts/get" and params["name"] in PROMPT_RESULTS:
            return PROMPT_RESULTS[params["name"]]
        if method == "resources/read" and params["uri"].removeprefix("result://") in READ_RESULTS:
            return READ_RESULTS[params["uri"].removeprefix("result://")]
        if method == "prompts/get":
            words = f"Hello, {(params.get('arguments') or {}).get('who')}!"
            return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": f"text of {params['uri']}"}]}
        return {} if method == "ping" else None

    @staticmethod
    def call(name, arguments):
        if not str(name).startswith("result-"):
            # An output schema that was mended asks for something structured.
            more = {"structuredContent": {"text": f"answered: {name}"}} if str(name).startswith("output-") else {}
            return call_good(name, arguments) or answer(f"answered: {name}", **more)
        kind = name.removeprefix("result-")
        if kind == "noise":
            make_noise()
        return RESULTS[kind]["result"]


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def make_noise():
    """Notifications that are none, before an answer that is good."""
    for params in (None, "text", [], {"level": "shout", "data": 1}, {"data": None}, {}):
        send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
        send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        send({"jsonrpc": "2.0", "method": "notifications/none", "params": params})
    send({"jsonrpc": "2.0", "method": 5})
    send({"jsonrpc": "2.0"})
    send("text")


def serve(server):
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            found = server.answer(request["method"], request.get("params") or {})
            if isinstance(found, dict) and "whole answer" in found:
                reply |= found["whole answer"]
            elif found is None:
                reply["error"] = {"code": -32601, "message": f"there is no method {request['method']}"}
            else:
                reply["result"] = found
        except Exception as error:  # What was asked is odd: that is told, and the next one is answered.
            reply["error"] = {"code": -32603, "message": f"{type(error).__name__}: {error}"}
        send(reply)


def expected():
    """What a client has to see, by the names that the server gives."""
    kinds = {"tools": TOOLS, "prompts": PROMPTS, "resources": RESOURCES, "templates": TEMPLATES}
    return {
        "good": [tool["name"] for tool in GOOD_TOOLS],
        "kept": {name: [k for k, of in kinds.items() if of["kept"]] for name, kinds in kinds.items()},
        "kinds": {name: list(kinds) for name, kinds in kinds.items()},
        "results": {f"result-{kind}": of["says"] for kind, of in RESULTS.items()},
        "prompt results": list(PROMPT_RESULTS),
        "read results": [f"result://{kind}" for kind in READ_RESULTS],
        "neighbour": NEIGHBOUR,
        "prompts": ["greet"],
        "resources": ["good://text"],
        "templates": ["good://item/{id}"],
        "big": BIG,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--expected"]:
        print(json.dumps(expected()))
    elif sys.argv[1:] == ["--results"]:
        serve(Server(results=True))
    else:
        serve(Server(sys.argv[2].split(",") if sys.argv[1:2] == ["--kinds"] else None))
