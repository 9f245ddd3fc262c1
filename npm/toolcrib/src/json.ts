/**
 * JSON whose integers keep all their digits.
 *
 * An integer that a number cannot hold (beyond 2^53) is a bigint, in both directions. A fraction or a number with an exponent is
 * the nearest number, as in JSON everywhere.
 */
import { randomBytes } from "node:crypto";

/** A value of JSON, as this package reads and writes it. */
export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** Precedes the digits of a bigint while they are a text. Nobody else knows it. */
const MARK = `bigint:${randomBytes(16).toString("hex")}:`;
const MARKED = new RegExp(`"${MARK}(-?[0-9]+)"`, "g");

/** Digits of the longest integer that is read as a bigint. One that is longer is an infinite number. */
const LONGEST = 10_000;

const NUMBER = /-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/g;
const LONG = /[0-9]{16}/;

/** Reads JSON. Integers beyond 2^53 are bigints. */
export function parseJson(text: string): unknown {
  if (!LONG.test(text)) {
    return JSON.parse(text);
  }
  const marked = markLong(text);
  const value: unknown = JSON.parse(marked);
  return marked === text ? value : mapTexts(value, (found) => {
    return found.startsWith(MARK) ? BigInt(found.slice(MARK.length)) : found;
  });
}

/** Writes JSON. A bigint is written as its digits. Lone surrogates, which are not Unicode, become U+FFFD. */
export function toJson(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    if (!(error instanceof TypeError) || !/BigInt/i.test(error.message)) {
      throw error;
    }
    const digits = (_: string, part: unknown) => (typeof part === "bigint" ? MARK + part.toString() : part);
    text = JSON.stringify(value, digits).replace(MARKED, "$1");
  }
  if (text === undefined) {
    throw new TypeError("the value is none of JSON");
  }
  return text.includes("\\ud") ? text.replace(/(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}/g, "$1\ufffd") : text;
}

/** The value with each bigint as the nearest number. It changes the value itself. */
export function roundBigints<T>(value: T): T {
  return mapParts(value, (part) => (typeof part === "bigint" ? Number(part) : part)) as T;
}

/** The text with long integers that a number cannot hold as marked texts. */
function markLong(text: string): string {
  const parts: string[] = [];
  let at = 0;
  while (at < text.length) {
    const quote = text.indexOf('"', at);
    const end = quote < 0 ? text.length : quote;
    const between = text.slice(at, end);
    parts.push(LONG.test(between) ? between.replace(NUMBER, markNumber) : between);
    at = quote < 0 ? end : endOfText(text, quote);
    parts.push(text.slice(end, at));
  }
  return parts.join("");
}

function markNumber(number: string): string {
  const isInteger = /^-?[0-9]+$/.test(number);
  return isInteger && number.length <= LONGEST && !Number.isSafeInteger(Number(number)) ? `"${MARK}${number}"` : number;
}

/** The place behind the text that begins with the quote at `start`. */
function endOfText(text: string, start: number): number {
  for (let at = start + 1; ; at += 1) {
    at = text.indexOf('"', at);
    if (at < 0) {
      return text.length;
    }
    let before = at;
    while (text[before - 1] === "\\") {
      before -= 1;
    }
    if ((at - before) % 2 === 0) {
      return at + 1;
    }
  }
}

function mapTexts(value: unknown, map: (text: string) => unknown): unknown {
  return mapParts(value, (part) => (typeof part === "string" ? map(part) : part));
}

/** Replaces parts of a value at any depth, without recursion: it may be nested deeper than the stack. */
function mapParts(value: unknown, map: (part: unknown) => unknown): unknown {
  const holder = { value };
  const open: object[] = [holder];
  for (let container = open.pop(); container !== undefined; container = open.pop()) {
    const parts = container as Record<string, unknown>;
    for (const key of Object.keys(parts)) {
      const part = parts[key];
      if (typeof part === "object" && part !== null) {
        open.push(part);
        continue;
      }
      const mapped = map(part);
      if (mapped !== part) {
        parts[key] = mapped;
      }
    }
  }
  return holder.value;
}
