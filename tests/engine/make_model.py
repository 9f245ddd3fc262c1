#!/usr/bin/env python3
"""Write a tiny chat model of random weights as one GGUF file; needs nothing but Python itself.

usage: make_model.py OUT.gguf [--seed 9]

What it says is noise; the engine around it is real: tokenizer, chat template, grammar, slots, HTTP.
Three things make the noise usable in a test:
- The chat template has the Hermes/Qwen form of tool calls, <tool_call>{"name": .., "arguments": ..}</tool_call>.
  llama.cpp recognises it and holds the model to a grammar made from the tools' schemas, from <tool_call> on.
- The last layer has a bias: the noise is printable ASCII, and a text ends by itself after about forty tokens.
- One reflex is wired by hand: after <|act|> comes <tool_call>. llama.cpp lets a model talk as long as it likes before
  a call, even with tool_choice "required", and noise would never begin one. The template writes <|act|> where a call is
  due: there are tools, and the model has called fewer than `rounds` times (a template argument, 1 if not given) since
  the last user message. So an agent loop sees calls first and a text at the end, as with a model that has sense.
"""
import argparse
import array
import math
import os
import random
import struct
import sys

HIDDEN, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 64, 2, 2, 128, 131072
TEXT_LENGTH = 40  # tokens, on average
CALM = 0.5  # spread of the logits: small enough that other seeds of a request give other answers

CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call functions. Their signatures, within <tools></tools>:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nA call is a JSON object within <tool_call></tool_call>:\\n' }}
{{- '<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set turn = namespace(calls=0) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set turn.calls = 0 %}{%- endif %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- if message.tool_calls %}{%- set turn.calls = turn.calls + 1 %}{%- endif %}
{{- '<|im_start|>assistant' }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for tool_call in message.tool_calls or [] %}
{%- set call = tool_call.function if tool_call.function else tool_call %}
{{- '\\n<tool_call>{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments if call.arguments is string else call.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if tools and turn.calls < rounds | default(1) %}{{- '<|act|>' }}{%- endif %}
{%- endif %}
"""

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def vocabulary():
    """One token per byte, in the printable stand-ins of byte-level BPE, and the marks of the template."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letter = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
    tokens = [letter[b] for b in range(256)]
    merge = (letter[ord("t")], letter[ord("h")])  # the format demands at least one
    tokens.append("".join(merge))
    kinds = [NORMAL] * len(tokens)
    for mark, kind in (("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL),
                       ("<|act|>", CONTROL), ("<tool_call>", USER_DEFINED)):
        tokens.append(mark)
        kinds.append(kind)
    return tokens, kinds, [" ".join(merge)]


def output_bias(tokens):
    """Printable ASCII, mostly words of small letters; a text ends at a steady rate, so do JSON strings and lists."""
    never = -40.0
    bias = [0.0 if 32 <= i < 127 else never for i in range(len(tokens))]
    bias[ord("a"):ord("z") + 1] = [1.0] * 26
    bias[ord(" ")], bias[ord('"')] = 2.5, 2.0
    bias[ord(",")] = -2.0  # another tool call in the same answer begins with a comma
    for c in "eE\\":  # the grammar allows 9e999999 and half a surrogate pair, JSON parsers do not
        bias[ord(c)] = never
    mass = sum(math.exp(b) for b in bias) * math.exp(CALM**2 / 2)  # the mean of exp(noise)
    bias[tokens.index("<|im_end|>")] = math.log(mass / TEXT_LENGTH)
    return bias


class Gguf:
    """The GGUF container, version 3: typed key-value pairs, tensor headers, aligned float32 data."""

    ALIGN = 32

    def __init__(self):
        self.pairs, self.headers, self.data, self.counts = bytearray(), bytearray(), bytearray(), [0, 0]

    @staticmethod
    def text(s):
        raw = s.encode()
        return struct.pack("<Q", len(raw)) + raw

    def value(self, v):
        if isinstance(v, bool):
            return 7, struct.pack("<?", v)
        if isinstance(v, int):
            return 4, struct.pack("<I", v)
        if isinstance(v, float):
            return 6, struct.pack("<f", v)
        if isinstance(v, str):
            return 8, self.text(v)
        kinds, raws = zip(*(self.value(x) for x in v))
        return 9, struct.pack("<IQ", kinds[0], len(v)) + b"".join(raws)

    def put(self, key, v):
        kind, raw = self.value(v)
        self.pairs += self.text(key) + struct.pack("<I", kind) + raw
        self.counts[1] += 1

    def tensor(self, name, shape, values):
        """`shape` as llama.cpp counts it: the fastest dimension first."""
        floats = array.array("f", values)
        assert len(floats) == math.prod(shape), name
        if sys.byteorder == "big":
            floats.byteswap()
        self.headers += self.text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(self.data))
        self.data += floats.tobytes()
        self.data += bytes(-len(self.data) % self.ALIGN)
        self.counts[0] += 1

    def write(self, path):
        head = b"GGUF" + struct.pack("<IQQ", 3, *self.counts) + self.pairs + self.headers
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "wb") as f:
            f.write(head + bytes(-len(head) % self.ALIGN) + self.data)
        os.replace(temporary, path)  # a half-written model is never seen


def main():
    parser = argparse.ArgumentParser(description="Write a tiny chat model of random weights as GGUF.")
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=9)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    tokens, kinds, merges = vocabulary()

    g = Gguf()
    g.put("general.architecture", "qwen2")  # the plain transformer of llama.cpp that knows an output bias
    g.put("general.name", "tiny-random")
    g.put("qwen2.context_length", CONTEXT)
    g.put("qwen2.embedding_length", HIDDEN)
    g.put("qwen2.block_count", LAYERS)
    g.put("qwen2.feed_forward_length", FEED_FORWARD)
    g.put("qwen2.attention.head_count", HEADS)
    g.put("qwen2.attention.head_count_kv", HEADS)
    g.put("qwen2.attention.layer_norm_rms_epsilon", 1e-6)
    g.put("qwen2.rope.freq_base", 1e6)
    g.put("tokenizer.ggml.model", "gpt2")
    g.put("tokenizer.ggml.pre", "qwen2")
    g.put("tokenizer.ggml.tokens", tokens)
    g.put("tokenizer.ggml.merges", merges)
    g.put("tokenizer.ggml.add_bos_token", False)
    g.put("tokenizer.ggml.padding_token_id", tokens.index("<|endoftext|>"))
    g.put("tokenizer.ggml.bos_token_id", tokens.index("<|endoftext|>"))
    g.put("tokenizer.ggml.eos_token_id", tokens.index("<|im_end|>"))
    g.pairs += g.text("tokenizer.ggml.token_type") + struct.pack(f"<IIQ{len(kinds)}i", 9, 5, len(kinds), *kinds)
    g.counts[1] += 1
    g.put("tokenizer.chat_template", CHAT_TEMPLATE)

    def noise(rows, columns):
        return [[rng.gauss(0, columns ** -0.5) for _ in range(columns)] for _ in range(rows)]

    def matrix(name, rows):
        g.tensor(name, (len(rows[0]), len(rows)), [x for row in rows for x in row])

    # The reflex owns dimension 0 of the state: <|act|> alone sets it, no layer writes to it, <tool_call> looks for it.
    embedding = noise(len(tokens), HIDDEN)
    output = [[CALM * x for x in row] for row in noise(len(tokens), HIDDEN)]
    for row in embedding:
        row[0] = 0.0
    embedding[tokens.index("<|act|>")][0] = 100.0
    output[tokens.index("<tool_call>")][0] = 20.0

    def vector(name, size, value):
        g.tensor(name, (size,), [value] * size)

    matrix("token_embd.weight", embedding)
    matrix("output.weight", output)
    vector("output_norm.weight", HIDDEN, 1.0)
    g.tensor("output.bias", (len(tokens),), output_bias(tokens))
    for i in range(LAYERS):
        block = f"blk.{i}."
        vector(block + "attn_norm.weight", HIDDEN, 1.0)
        vector(block + "ffn_norm.weight", HIDDEN, 1.0)
        for part, rows, columns in (("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN, HIDDEN), ("attn_v", HIDDEN, HIDDEN),
                                    ("attn_output", HIDDEN, HIDDEN), ("ffn_gate", FEED_FORWARD, HIDDEN),
                                    ("ffn_up", FEED_FORWARD, HIDDEN), ("ffn_down", HIDDEN, FEED_FORWARD)):
            weights = noise(rows, columns)
            if part in ("attn_output", "ffn_down"):
                weights[0] = [0.0] * columns
            matrix(f"{block}{part}.weight", weights)
            if part in ("attn_q", "attn_k", "attn_v"):
                vector(f"{block}{part}.bias", rows, 0.0)
    g.write(args.out)
    print(f"engine: {args.out}, {os.path.getsize(args.out) // 1024} KiB, {len(tokens)} tokens")


if __name__ == "__main__":
    main()
