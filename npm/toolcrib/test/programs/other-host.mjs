#!/usr/bin/env node
// A host that speaks another version of the protocol.
import { Socket } from "node:net";

const socket = new Socket({ fd: 3 });
socket.write('{"jsonrpc":"2.0","method":"hello","params":{"protocol":9,"version":"9.0.0","pid":1,"teardown":"guards"}}\n');
socket.on("data", () => {});
