"""A model for the agents: it refuses tools as OpenAI does, calls the tool that the question names, and says what that gave.

usage: python model.py PORT      (chat completions; a question is `Call TOOL with {..}`)
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

QUESTION = re.compile(r"Call (\S+) with (\{.*?\})", re.DOTALL)
COMBINATORS = ("anyOf", "oneOf", "allOf", "enum", "not")


def refusal(functions):
    """What OpenAI says to tools that it does not take, or None."""
    seen = set()
    for function in functions:
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name):
            return f"Invalid 'tools[].function.name': {name!r} does not match '^[a-zA-Z0-9_-]{{1,64}}$'"
        if name in seen:
            return f"Invalid 'tools': the name {name!r} is there twice"
        seen.add(name)
        if schema is None:  # A function without parameters.
            continue
        if not isinstance(schema, dict) or schema.get("type") != "object" or any(word in schema for word in COMBINATORS):
            return (
                f"Invalid schema for function {name!r}: schema must have type 'object' "
                f"and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level: {json.dumps(schema)[:200]}"
            )
        if "properties" not in schema:
            return f"Invalid schema for function {name!r}: In context=(), object schema missing properties."
        try:
            # OpenAI's own words for a schema that is none are those of this package.
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            return f"Invalid schema for function {name!r}: {error.message} at {error.json_path}"
        if not isinstance(function.get("description", ""), (str, type(None))):
            return f"Invalid 'tools[].function.description' of {name!r}"
    return None


def text(message):
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or "" for part in content if isinstance(part, dict))


def plain(name):
    return "_" + re.sub(r"\W", "_", name)


def answer(request):
    """The status and the message of the model."""
    functions = [tool["function"] for tool in request.get("tools") or []]
    wrong = refusal(functions)
    if wrong:
        return 400, wrong
    names = [function["name"] for function in functions]
    messages = request["messages"]
    last = messages[-1]
    # smolagents writes results as words of the user.
    if last["role"] == "tool" or "Observation" in text(last):
        said = f"The tool says: {text(last)}"
        if "final_answer" in names:
            return 200, called("final_answer", json.dumps({"answer": said}))
        return 200, {"role": "assistant", "content": said}
    question = next((found for message in messages[::-1] if (found := QUESTION.search(text(message)))), None)
    if question is None:
        return 400, "there is no question"
    # Clients put their own words before a name, or write it as a name of Python.
    wanted = plain(question[1])
    tool = next((name for name in names if plain(name).endswith(wanted)), None)
    if tool is None:
        return 400, f"there is no tool {question[1]!r} among {len(names)}"
    return 200, called(tool, question[2])


def called(name, arguments):
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, said = answer(request)
        if status == 200:
            reason = "tool_calls" if said.get("tool_calls") else "stop"
            body = {
                "id": "answer",
                "object": "chat.completion",
                "created": 0,
                "model": "fake",
                "choices": [{"index": 0, "finish_reason": reason, "message": said}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        else:
            body = {"error": {"message": said, "type": "invalid_request_error", "param": None, "code": None}}
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
