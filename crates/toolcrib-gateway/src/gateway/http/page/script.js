"use strict";
// Asks for the state of the gateway once a second while somebody looks. What it shows are words of servers and clients: they become
// text, and never HTML.
(() => {
  const EVERY = 1000, KEPT_LINES = 1000, KEPT_ENDED = 300, KEY = "toolcrib-gateway-token", UNKNOWN = "The gateway does not know this token.";
  const PHASES = [["queue", "queue"], ["template", "template"], ["spawn", "spawn"], ["first_byte", "first byte"], ["handshake", "handshake"], ["list", "tool list"]];
  const byId = (id) => document.getElementById(id);
  const stored = () => { try { return sessionStorage.getItem(KEY); } catch { return null; } };
  const store = (token) => { try { sessionStorage.setItem(KEY, token); } catch { /* this page knows it until it is closed */ } };
  let token = stored(), seen = { run: "", lines: 0, ended: 0 }, lines = [], ended = [];

  // An element with text and a class.
  const made = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = kind;
    return element;
  };
  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const mark = (element, kind) => { if (element.className !== kind) element.className = kind; };
  const show = (id, shown) => { byId(id).hidden = !shown; };
  // Makes the children of `parent` those of `list`, each known by its key: what is there stays, so that it can be selected.
  const fill = (parent, list, key, make, set) => {
    const known = new Map([...parent.children].filter((child) => child.dataset.key).map((child) => [child.dataset.key, child]));
    let place = [...parent.children].find((child) => child.dataset.key) ?? null;
    for (const one of list) {
      const name = String(key(one));
      let child = known.get(name);
      known.delete(name);
      if (!child) {
        child = make(one);
        child.dataset.key = name;
      }
      if (child === place) place = place.nextElementSibling;
      else parent.insertBefore(child, place);
      set(child, one);
    }
    known.forEach((child) => child.remove());
  };
  // A row with these cells: texts, or elements that `set` fills.
  const row = (heads) => {
    const tr = document.createElement("tr");
    for (const head of heads) {
      const td = made("td", "", head.startsWith("#") ? "number" : "");
      td.dataset.head = head.replace("#", "");
      tr.append(td);
    }
    return tr;
  };

  const time = (ms) => {
    if (ms === null || ms === undefined) return "–";
    if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
    const s = ms / 1000;
    if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min` : `${Math.floor(s / 86400)} d`;
  };
  const clock = (at) => new Date(at).toLocaleTimeString([], { hour12: false });
  const count = (number) => (number ?? "–").toLocaleString("en");
  const memory = (bytes) => (bytes === null || bytes === undefined ? "–" : bytes < 2 ** 30 ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`);
  const total = (list, of) => list.reduce((sum, one) => sum + (of(one) ?? 0), 0);
  const named = (client) => (client ? client[1] || `client ${client[0]}` : "another client");

  // A cell of two lines, the second one small.
  const two = (td, first, second, kind = "said") => {
    if (!td.firstElementChild) td.append(made("span", "", kind), made("span", "", "said small"));
    say(td.firstElementChild, first);
    say(td.lastElementChild, second);
  };
  const badge = (td, text, kind) => {
    if (!td.firstElementChild) td.append(made("span"));
    say(td.firstElementChild, text);
    mark(td.firstElementChild, `badge ${kind}`);
  };

  const HEADS = ["server", "state", "transport", "#start", "#calls", "#errors", "#median", "#p95", "#memory", "#process", "#restarts"];
  const start = (td, phases, longest) => {
    if (!td.firstElementChild) {
      td.append(made("span"), made("span", "", "start"));
      for (const [name] of PHASES) td.lastElementChild.append(made("i", "", `p-${name}`));
    }
    const sum = phases ? total(PHASES, ([name]) => phases[name] ?? 0) : null;
    say(td.firstElementChild, time(sum));
    td.title = phases ? PHASES.filter(([name]) => name in phases).map(([name, word]) => `${word} ${time(phases[name])}`).join(", ") : "";
    PHASES.forEach(([name], index) => {
      td.lastElementChild.children[index].style.width = phases ? `${(100 * (phases[name] ?? 0)) / longest}%` : "0";
    });
  };
  // Why a server is down, or was lost last, and what to do.
  const why = (tr, server) => {
    const error = server.error ?? server.lost, faults = server.faults ?? [];
    tr.hidden = !error && !faults.length;
    mark(tr, server.error ? "why down" : "why");
    const [said, detail, help] = tr.querySelectorAll(".said > span");
    if (!error) {
      // What clients would not be able to read in its lists and results.
      say(said, faults.length ? `${faults.length === 1 ? "1 thing" : `${faults.length} things`} that this server says wrongly:` : "");
      say(detail, faults.join("\n"));
      detail.hidden = !faults.length;
      help.hidden = true;
      return;
    }
    const next = server.error && server.next_try_ms !== null ? `; next try in ${time(server.next_try_ms)}` : "";
    say(said, `${server.error ? "" : "lost last: "}${error.text}${next}`);
    say(detail, [...error.causes, ...error.stderr.map((line) => `stderr: ${line}`)].join("\n"));
    detail.hidden = !detail.textContent;
    say(help, error.help ? `next step: ${error.help}` : "");
    help.hidden = !error.help;
  };
  const newServer = () => {
    const body = document.createElement("tbody"), reason = made("tr", "", "why"), td = made("td"), said = made("div", "", "said");
    td.colSpan = HEADS.length;
    said.append(made("span", "", "said"), made("span", "", "said lines"), made("span", "", "said help"));
    td.append(said);
    reason.append(td);
    body.append(row(HEADS), reason);
    return body;
  };
  const servers = (list) => {
    const longest = Math.max(1, ...list.map((one) => (one.start ? total(PHASES, ([name]) => one.start[name] ?? 0) : 0)));
    // Most starts wait for no template.
    byId("key-template").hidden = !list.some((one) => one.start?.template);
    fill(byId("servers"), list, (one) => one.name, newServer, (body, one) => {
      const [name, state, transport, began, calls, errors, half, most, room, process, restarts] = body.firstElementChild.cells;
      two(name, one.name, [one.software, one.tools ? `${one.tools} ${one.tools === 1 ? "tool" : "tools"}` : ""].filter(Boolean).join(", "));
      const lent = one.lent || one.spares ? `${one.lent} lent, ${one.spares} spare` : "";
      if (!state.firstElementChild) state.append(made("span"), made("span", "", "said small"));
      badge(state, one.state, one.state);
      say(state.lastElementChild, [one.in_flight ? `${one.in_flight} under way` : "", one.waiting ? `${one.waiting} waiting` : "", lent].filter(Boolean).join(", "));
      two(transport, one.transport ?? "–", one.version ?? "");
      start(began, one.start, longest);
      say(calls, count(one.calls));
      say(errors, count(one.errors));
      say(half, time(one.p50_ms));
      say(most, time(one.p95_ms));
      say(room, memory(one.memory));
      two(process, one.pid ? String(one.pid) : "–", one.processes > 1 ? `${one.processes} processes` : one.up_ms === null ? "" : `up ${time(one.up_ms)}`);
      say(restarts, count(one.restarts));
      why(body.lastElementChild, one);
    });
    show("no-servers", !list.length);
  };
  const sums = (state) => {
    const there = state.servers.filter((one) => ["ready", "busy", "parked"].includes(one.state)).length;
    const all = [
      ["servers ready", `${there} of ${state.servers.length}`, there < state.servers.length],
      ["clients", count(state.clients.length + state.more_clients)],
      ["calls under way", count(state.calls.length + state.more_calls)],
      ["calls so far", count(total(state.servers, (one) => one.calls))],
      ["errors", count(total(state.servers, (one) => one.errors))],
      ["restarts", count(total(state.servers, (one) => one.restarts))],
    ];
    fill(byId("sums"), all, ([word]) => word, ([word]) => {
      const li = made("li");
      li.append(made("b"), made("span", word));
      return li;
    }, (li, [, value, bad]) => {
      say(li.firstElementChild, value);
      mark(li, bad ? "bad" : "");
    });
  };
  const body = (id) => byId(id).tBodies[0];
  const calls = (state) => {
    fill(body("calls"), state.calls, (one) => one.number, () => row(["tool", "client", "#for"]), (tr, one) => {
      const [tool, client, since] = tr.cells;
      two(tool, one.asked, one.server);
      two(client, named(one.client), "");
      say(since, time(one.ms));
    });
    show("no-calls", !state.calls.length);
    show("calls", state.calls.length);
  };
  const clients = (state) => {
    fill(body("clients"), state.clients, (one) => one.number, () => row(["client", "revision", "address", "#under way", "#idle"]), (tr, one) => {
      const [client, version, path, requests, idle] = tr.cells;
      const names = one.names.filter(Boolean);
      two(client, names.join(", ") || `client ${one.number}`, one.token ? `token ${one.token}` : "");
      two(version, one.version, `${one.era} era`);
      two(path, one.path, "");
      say(requests, count(one.under_way));
      say(idle, one.idle_ms !== null ? time(one.idle_ms) : one.under_way ? "–" : "listens");
    });
    show("no-clients", !state.clients.length);
    show("clients", state.clients.length);
  };
  const failed = (one) => !["ok", "cancelled"].includes(one.outcome);
  const calledLast = () => {
    const list = ended.filter((one) => !byId("only-failed").checked || failed(one)).reverse();
    fill(body("ended"), list, (one) => one.number, () => row(["time", "tool", "client", "#took", "outcome"]), (tr, one) => {
      if (tr.cells[0].textContent) return;
      const [at, tool, client, took, outcome] = tr.cells;
      say(at, clock(one.at));
      two(tool, one.asked, one.server);
      two(client, named(one.client), "");
      say(took, time(one.ms));
      badge(outcome, one.outcome.replaceAll("_", " "), failed(one) ? "went-wrong" : one.outcome);
      if (one.text) outcome.append(made("span", one.text, "said"));
      if (one.help) outcome.append(made("span", `next step: ${one.help}`, "said small"));
    });
    show("no-ended", !list.length);
    show("ended", list.length);
  };
  const log = () => {
    const box = byId("log"), of = byId("of").value;
    const list = lines.filter((one) => !of || one.server === of);
    // It follows what is new unless somebody reads further up.
    const below = box.scrollHeight - box.scrollTop - box.clientHeight < 30;
    fill(box, list, (one) => one.number, (one) => {
      const p = made("p", "", one.kind);
      const server = made("span", one.server);
      server.title = one.server;
      p.append(made("span", clock(one.at)), server, made("span", one.kind), made("span", one.text, "said"));
      return p;
    }, () => {});
    if (below) box.scrollTop = box.scrollHeight;
    show("no-lines", !list.length);
    show("log", list.length);
  };
  const filter = (list) => {
    const names = list.filter((one) => one.whole).map((one) => one.name);
    fill(byId("of"), names, (name) => name, (name) => made("option", name), () => {});
  };

  const present = (state) => {
    if (state.run !== seen.run) [lines, ended] = [[], []];
    seen = { run: state.run, lines: state.last_line, ended: state.last_ended };
    say(byId("about"), `version ${state.version}, up ${time(state.up_ms)}${state.limited ? "; this token sees a part of it" : ""}`);
    sums(state);
    servers(state.servers);
    calls(state);
    clients(state);
    filter(state.servers);
    if (state.ended.length || !ended.length) {
      ended = [...ended, ...state.ended].slice(-KEPT_ENDED);
      calledLast();
    }
    if (state.lines.length || !lines.length) {
      lines = [...lines, ...state.lines].slice(-KEPT_LINES);
      log();
    }
  };
  const tell = (word, kind, note = "") => {
    say(byId("state"), word);
    mark(byId("state"), `badge ${kind}`);
    say(byId("note"), note);
    show("note", note);
    byId("main").classList.toggle("away", kind !== "live");
  };
  const login = (note) => {
    tell("token needed", "lost", note);
    show("login", true);
    show("main", false);
    byId("about").textContent = "";
    [lines, ended, seen] = [[], [], { run: "", lines: 0, ended: 0 }];
  };
  let waiting = null, asking = false;
  const ask = async () => {
    if (asking || document.hidden) return;
    asking = true;
    clearTimeout(waiting);
    const used = token;
    try {
      // While the servers are being started there is no answer yet.
      const slow = setTimeout(() => tell("waiting", "lost", "There is no answer yet: the servers are being started, perhaps."), 3000);
      const headers = used ? { Authorization: `Bearer ${used}` } : {};
      const reply = await fetch(`live?${new URLSearchParams(seen)}`, { headers, credentials: "omit", cache: "no-store" }).finally(() => clearTimeout(slow));
      if (reply.status === 401) {
        login(used ? UNKNOWN : "");
        return;
      }
      if (!reply.ok) throw new Error(`the gateway answers with status ${reply.status}`);
      const state = await reply.json();
      if (used) store(used);
      tell("live", "live");
      show("login", false);
      show("main", true);
      present(state);
    } catch (error) {
      tell("not reached", "lost", `What is below is from before: ${error instanceof TypeError ? "the gateway does not answer" : error.message}.`);
    } finally {
      asking = false;
      // Another token was given meanwhile.
      if (token !== used) setTimeout(ask);
    }
    waiting = setTimeout(ask, EVERY);
  };
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    const given = byId("token").value.trim();
    byId("token").value = "";
    // Others cannot be in a header.
    if (/^[\x21-\x7e]+$/.test(given)) {
      token = given;
      ask();
    } else {
      login(UNKNOWN);
    }
  });
  byId("only-failed").addEventListener("change", calledLast);
  byId("of").addEventListener("change", log);
  document.addEventListener("visibilitychange", ask);
  for (const [name, word] of PHASES) {
    const key = made("span", "", "key");
    key.id = `key-${name}`;
    key.hidden = name === "template";
    key.append(made("i", "", `p-${name}`), made("span", word));
    byId("phases").append(key);
  }
  ask();
})();
