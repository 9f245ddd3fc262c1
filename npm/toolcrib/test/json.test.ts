/** JSON with all digits of its integers. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseJson, toJson } from "toolcrib";

test("integers beyond 2^53 are bigints, in both directions", () => {
  const text = '{"a":9007199254740993,"b":[-123456789012345678901234567890],"c":9007199254740991,"d":1.5,"e":12345678901234567890e3}';
  const value = parseJson(text) as Record<string, unknown>;
  assert.deepEqual(value, { a: 9007199254740993n, b: [-123456789012345678901234567890n], c: 9007199254740991, d: 1.5, e: 12345678901234567890e3 });
  assert.equal(toJson({ a: value["a"], b: value["b"] }), '{"a":9007199254740993,"b":[-123456789012345678901234567890]}');
  assert.equal(parseJson("9007199254740993"), 9007199254740993n);
});

test("digits within texts and keys stay texts", () => {
  const texts = ["9007199254740993", '"9007199254740993', "\\", '\\"9007199254740993\\\\', "a\\\\", '[9007199254740993, "'];
  for (const text of texts) {
    const value = { [text]: text, big: 9007199254740993n, list: [text, 9007199254740995n, text] };
    assert.deepEqual(parseJson(toJson(value)), value);
  }
});

test("the name of a prototype is a name as any other", () => {
  const value = parseJson('{"__proto__":9007199254740993,"a":{"__proto__":{"b":9007199254740993}}}') as Record<string, unknown>;
  assert.deepEqual(Object.entries(value)[0], ["__proto__", 9007199254740993n]);
  assert.equal(Object.getPrototypeOf(value), Object.prototype);
  assert.equal(({} as Record<string, unknown>)["b"], undefined);
});

test("deep and long values are read without trouble", () => {
  const deep = 20_000;
  let value = parseJson("[".repeat(deep) + "9007199254740993" + "]".repeat(deep));
  for (let level = 0; level < deep; level += 1) {
    value = (value as unknown[])[0];
  }
  assert.equal(value, 9007199254740993n);
  assert.equal(parseJson("9".repeat(20_000)), Infinity);
  const long = { text: '\\"'.repeat(1_000_000), big: 9007199254740993n };
  assert.deepEqual(parseJson(toJson(long)), long);
});

test("what is no Unicode and what is no JSON", () => {
  assert.equal(toJson("a\ud800b"), '"a\ufffdb"');
  assert.equal(toJson("\\ud800 \ud83d\ude00"), '"\\\\ud800 \ud83d\ude00"');
  assert.throws(() => toJson(undefined), TypeError);
  assert.throws(() => parseJson('{"a":9007199254740993'), SyntaxError);
});
