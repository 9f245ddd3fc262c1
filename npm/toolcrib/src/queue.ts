/** Events on their way to those who iterate over them. */

/** Events that wait for a reader. The oldest ones beyond it are dropped. */
const MOST = 10_000;

/** Events for one reader. */
export class Queue<T> implements AsyncIterableIterator<T> {
  #waiting: { event: T; keep: boolean }[] = [];
  #readers: PromiseWithResolvers<IteratorResult<T>>[] = [];
  #end: { error?: Error } | undefined;
  readonly #closed: () => void;

  /** `closed` is called once, when nobody reads any more. */
  constructor(closed: () => void = () => {}) {
    this.#closed = closed;
  }

  /** Adds an event. One to `keep` is never dropped. */
  push(event: T, keep = false): void {
    if (this.#end) {
      return;
    }
    const reader = this.#readers.shift();
    if (reader) {
      reader.resolve({ value: event, done: false });
      return;
    }
    this.#waiting.push({ event, keep });
    if (!keep && this.#waiting.length > MOST) {
      const oldest = this.#waiting.findIndex((waiting) => !waiting.keep);
      this.#waiting.splice(oldest, 1);
    }
  }

  /** No more events follow. With an error the reader gets that, after the events. */
  end(error?: Error): void {
    if (this.#end) {
      return;
    }
    this.#end = error ? { error } : {};
    for (const reader of this.#readers.splice(0)) {
      void this.next().then(reader.resolve, reader.reject);
    }
  }

  async next(): Promise<IteratorResult<T>> {
    const waiting = this.#waiting.shift();
    if (waiting) {
      return { value: waiting.event, done: false };
    }
    if (this.#end) {
      const { error } = this.#end;
      this.#end = {};
      if (error) {
        throw error;
      }
      return { value: undefined, done: true };
    }
    const reader = withResolvers<IteratorResult<T>>();
    this.#readers.push(reader);
    return reader.promise;
  }

  async return(): Promise<IteratorResult<T>> {
    this.#waiting = [];
    if (!this.#end) {
      this.end();
      this.#closed();
    }
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

/** A promise with the functions that settle it. */
export interface PromiseWithResolvers<T> {
  promise: Promise<T>;
  resolve: (value: T) => void;
  reject: (error: unknown) => void;
}

/** `Promise.withResolvers`, which Node 20 does not have. */
export function withResolvers<T>(): PromiseWithResolvers<T> {
  let [resolve, reject]: [(value: T) => void, (error: unknown) => void] = [() => {}, () => {}];
  const promise = new Promise<T>((settle, fail) => {
    [resolve, reject] = [settle, fail];
  });
  return { promise, resolve, reject };
}
