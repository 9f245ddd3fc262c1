"""An MCP server on the standard library, which knows whether it was forked: a template keeps its objects out of garbage collections."""

import gc
import json
import sys


def was_forked():
    return gc.get_freeze_count() > 0


def result_of(message, tools):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        about = {"name": "tool_server", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    if method == "tools/call":
        try:
            return {"content": [{"type": "text", "text": json.dumps(tools[params["name"]]())}]}
        except Exception as error:
            return {"content": [{"type": "text", "text": f"{type(error).__name__}: {error}"}], "isError": True}
    return {} if method == "ping" else None


def answer(line, tools):
    """The answer to one message, or nothing."""
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        return None
    result = result_of(message, tools)
    said = {"error": {"code": -32601, "message": "no such method"}} if result is None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **said})


def serve(tools):
    """Answers until the end of the input. `tools` are functions without arguments, by their names."""
    for line in sys.stdin:
        said = answer(line, tools)
        if said is not None:
            print(said, flush=True)
