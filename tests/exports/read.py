"""Opens an export of toolcrib with the real tools of its format, and prints what they found as JSON.

usage: venv/bin/python read.py FORMAT PATH
"""

import base64
import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "readers"))


def inspect(path):
    from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries

    log = read_eval_log(path)
    first = log.samples[0]
    assert read_eval_log_sample(path, id=first.id, epoch=first.epoch).messages == first.messages
    return {
        "status": log.status,
        "metrics": {name: metric.value for name, metric in log.results.scores[0].metrics.items()},
        "samples": [
            {
                "id": sample.id,
                "epoch": sample.epoch,
                "value": sample.scores["toolcrib"].value if sample.scores else None,
                "error": sample.error.message if sample.error else None,
                "answer": sample.output.completion,
                "roles": [message.role for message in sample.messages],
                "calls": [call.function for m in sample.messages for call in getattr(m, "tool_calls", None) or []],
            }
            for sample in log.samples
        ],
        "summaries": [[row.id, row.message_count] for row in read_eval_log_sample_summaries(path)],
    }


def atif(path):
    from harbor.utils.trajectory_validator import TrajectoryValidator

    found = {}
    for file in sorted(Path(path).iterdir()):
        validator = TrajectoryValidator()
        document = json.loads(file.read_text())
        found[document["trajectory_id"]] = {
            "valid": validator.validate(file),
            "errors": validator.errors,
            "sources": [step["source"] for step in document["steps"]],
        }
    return found


def openai(path):
    from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam
    from pydantic import TypeAdapter

    messages, tools = TypeAdapter(list[ChatCompletionMessageParam]), TypeAdapter(list[ChatCompletionFunctionToolParam])
    found = []
    for line in open(path):
        document = json.loads(line)
        assert set(document) <= {"messages", "tools"}, set(document)
        read = messages.validate_python(document["messages"])
        # Lists in these types are checked when they are read.
        calls = [call["function"]["name"] for message in read for call in message.get("tool_calls", [])]
        offered = [tool["function"]["name"] for tool in tools.validate_python(document.get("tools", []))]
        found.append({"roles": [message["role"] for message in read], "calls": calls, "tools": offered})
    return found


def table(path):
    return list(csv.DictReader(open(path, newline=""), strict=True))


def otlp(path):
    from google.protobuf import json_format
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    found = []
    for line in open(path):
        document = json.loads(line)
        for resource in document["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    # OTLP writes ids in hexadecimal, the JSON form of protocol buffers in base64.
                    for key in ("traceId", "spanId", "parentSpanId"):
                        span[key] = base64.b64encode(bytes.fromhex(span[key])).decode()
        for resource in json_format.ParseDict(document, TracesData()).resource_spans:
            found += [row(span) for scope in resource.scope_spans for span in scope.spans]
    return found


def row(span):
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "begin": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "failed": span.status.code == 2,
        "attributes": {field.key: getattr(field.value, field.value.WhichOneof("value")) for field in span.attributes
                       if field.value.WhichOneof("value") != "array_value"},
    }


def received(path):
    """Bodies of requests that an OTLP collector got: each a file."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = []
    for file in sorted(Path(path).iterdir()):
        request = ExportTraceServiceRequest()
        request.ParseFromString(file.read_bytes())
        for resource in request.resource_spans:
            service = {field.key: field.value.string_value for field in resource.resource.attributes}
            for scope in resource.scope_spans:
                found += [{**row(span), "resource": service} for span in scope.spans]
    return found


def junit(path):
    from junitparser import JUnitXml

    def case(found):
        results = [{"kind": type(result).__name__, "type": result.type, "message": result.message} for result in found.result]
        return {"name": found.name, "time": found.time, "results": results}

    document = JUnitXml.fromfile(path)
    return [{"name": suite.name, "tests": suite.tests, "failures": suite.failures, "errors": suite.errors,
             "skipped": suite.skipped, "cases": [case(found) for found in suite]} for suite in document]


READERS = {"inspect": inspect, "atif": atif, "openai": openai, "csv": table, "otlp": otlp, "received": received,
           "junit": junit}
print(json.dumps(READERS[sys.argv[1]](sys.argv[2])))
