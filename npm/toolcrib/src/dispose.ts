/** `Symbol.dispose` and `Symbol.asyncDispose`, which the first releases of Node 20 do not have. */
for (const name of ["dispose", "asyncDispose"] as const) {
  if (!(name in Symbol)) {
    Object.defineProperty(Symbol, name, { value: Symbol.for(`Symbol.${name}`) });
  }
}

export {};
