#!/usr/bin/env node
// A client program of Seatrial for registers in etcd, by etcd's JSON gateway and fetch of Node.
import { createInterface } from "node:readline";

const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const encode = (value) => Buffer.from(String(value)).toString("base64");
const decode = (text) => Number(Buffer.from(text, "base64").toString());
let servers, settings;

// Nothing is sent twice: only a connection that was refused is tried at another server.
async function post(process, path, body) {
  for (let n = 0; ; n++) {
    const server = servers[(process + n) % servers.length];
    try {
      const answer = await fetch(`http://${server}:2379/v3/kv/${path}`, {
        method: "POST",
        body: JSON.stringify(body),
        signal: AbortSignal.timeout(2000),
      });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.error ?? `status ${answer.status}`);
      return found;
    } catch (error) {
      const refused = error.cause?.code === "ECONNREFUSED";
      if (refused && n + 1 < servers.length) continue;
      error.certain = refused || error.message.includes("too many requests");
      throw error;
    }
  }
}

const calls = {
  async read(process, key) {
    const found = await post(process, "range", {
      key: encode(key),
      serializable: settings.serializable,
    });
    return found.kvs ? decode(found.kvs[0].value) : null;
  },
  async write(process, key, value) {
    await post(process, "put", { key: encode(key), value: encode(value) });
    return true;
  },
  async cas(process, key, old, value) {
    const compare =
      old === null
        ? { key: encode(key), target: "VERSION", version: 0 }
        : { key: encode(key), target: "VALUE", value: encode(old) };
    const change = { request_put: { key: encode(key), value: encode(value) } };
    const done = await post(process, "txn", { compare: [compare], success: [change] });
    return done.succeeded ?? false;
  },
};

print({ seatrial: 1, calls: Object.keys(calls) });
for await (const line of createInterface({ input: process.stdin })) {
  const given = JSON.parse(line);
  if (given.seatrial) {
    ({ servers, settings } = given);
  } else {
    const { id, process, call, args } = given;
    calls[call](process, ...args).then(
      (ok) => print({ id, ok }),
      (error) => print({ id, [error.certain ? "fail" : "info"]: String(error.cause ?? error) }),
    );
  }
}
