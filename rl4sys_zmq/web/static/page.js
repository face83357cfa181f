// The page: asks its server, and draws what is known. Every text from a learner becomes a text node, never markup.
import {Charts} from "/static/charts.js";

const POLL_MS = 1000, ANSWER_MS = 8000, CLIENT_ROWS = 20, MAX_RECORDS = 600, MAX_EVENTS = 200, STALE_S = 5;
const MARKED = {parameters_changed: "parameters", client_restarted: "restart", client_ready: "start", worker_crashed: "crash",
  client_failed: "failure", fed_again: "rollback", checkpoint_damaged: "damaged checkpoint", warm_started: "warm start",
  learner_started: "learner start"};
const DEAD = new Set(["item_refused", "segment_quarantined", "dead_letter", "gap", "hello_refused"]);
const query = new URLSearchParams(location.search);
const here = {learner: query.get("learner"), client: location.pathname === "/client" ? query.get("client") : null};
const main = document.getElementById("main");

// ---- a small tree of nodes: `patch` changes only what differs, so focus, selection and scrolling stay
const SVG = "http://www.w3.org/2000/svg";
const el = (tag, attrs, ...children) => ({tag, attrs: attrs ?? {}, children: children.flat(9).filter(c => c != null && c !== false && c !== "")});

function patch(parent, wanted) {
  wanted.forEach((want, i) => {
    let have = parent.childNodes[i];
    if (typeof want !== "object") {
      if (have?.nodeType !== Node.TEXT_NODE) put(parent, document.createTextNode(want), have);
      else if (have.data !== String(want)) have.data = want;
      return;
    }
    if (have?.localName !== want.tag || have.patchKey !== want.attrs.key) {
      const space = want.tag === "svg" || parent.namespaceURI === SVG ? SVG : parent.namespaceURI;
      const made = document.createElementNS(space, want.tag);
      made.patchKey = want.attrs.key;
      put(parent, made, have);
      have = made;
    }
    for (const [name, value] of Object.entries(want.attrs)) {
      if (name === "key" || value == null || value === false) continue;
      if (have.getAttribute(name) !== String(value)) have.setAttribute(name, value);
    }
    for (const name of have.getAttributeNames()) if (want.attrs[name] == null || want.attrs[name] === false) have.removeAttribute(name);
    patch(have, want.children);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}
const put = (parent, node, before) => before ? parent.replaceChild(node, before) : parent.append(node);

// ---- numbers and words
const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const num = value => value == null ? "–" : whole.format(value);
const fig = value => value == null ? "–" : Math.abs(value) >= 1000 ? num(value) : String(+value.toPrecision(4));
const many = (count, word) => `${num(count)} ${word}${count === 1 ? "" : "s"}`;
const bytes = count => count == null ? "–" : count >= 1e9 ? `${(count / 1e9).toFixed(1)} GB` : count >= 1e6 ? `${(count / 1e6).toFixed(0)} MB`
  : `${(count / 1e3).toFixed(0)} kB`;
const share = value => value == null ? "–" : `${Math.round(value * 100)} %`;
function span(s) {
  if (s == null) return "–";
  s = Math.max(0, s);
  return s < 60 ? `${Math.floor(s)} s` : s < 3600 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h`
    : `${Math.floor(s / 86400)} d`;
}
const ago = t => `${span(Date.now() / 1000 - t)} ago`;
const clock = t => new Date(t * 1000).toLocaleString("en-GB", {dateStyle: "short", timeStyle: "medium"});
const visible = text => String(text).replace(/[\p{Cc}\p{Cf}]/gu, c => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
const name = text => el("bdi", {}, visible(text));
const shell = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`;
const page = (learner, client) => `/client?${new URLSearchParams({learner, client})}`;

function told(record) {
  const rest = Object.entries(record).filter(([key, value]) => !["t", "event", "client_id", "parameters"].includes(key) && value !== "" && value != null);
  const text = rest.map(([key, value]) => key === "changes" && typeof value === "object"
    ? Object.entries(value).map(([k, v]) => Array.isArray(v) ? `${k} ${v.map(x => JSON.stringify(x)).join(" → ")}` : k).join(", ")
    : `${key.replace(/_s$/, "").replaceAll("_", " ")} ${key.endsWith("_s") && typeof value === "number" ? span(value)
      : typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
  const words = String(record.event).replaceAll("_", " ");
  return visible(text ? `${words}: ${text}` : words).slice(0, 400);
}

// ---- parts of both pages
function card(ask, say, more, tone, extra) {
  return el("li", {}, extra, el("div", {class: "ask"}, ask), el("div", {class: `say ${tone ?? ""}`, title: say}, say),
    el("div", {class: "more"}, more));
}
function trend(points) {
  if (!points || points.length < 8) return null;
  const values = points.map(p => p[1]), part = Math.ceil(values.length / 4), mean = a => a.reduce((x, y) => x + y, 0) / a.length;
  const gain = mean(values.slice(-part)) - mean(values.slice(-2 * part, -part)), range = Math.max(...values) - Math.min(...values);
  return range === 0 || Math.abs(gain) < 0.05 * range ? "steady" : gain > 0 ? "rising" : "falling";
}
const ARROWS = {rising: "↗", steady: "→", falling: "↘"};
function spark(curve) {
  const points = curve?.points ?? [];
  if (points.length < 2) return el("svg", {class: "spark", "aria-hidden": "true", viewBox: "0 0 100 24"});
  const xs = points.map(p => p[0]), ys = points.map(p => p[1]), low = Math.min(...ys), high = Math.max(...ys), first = xs[0], last = xs.at(-1);
  const at = ([x, y]) => `${(100 * (x - first) / (last - first || 1)).toFixed(1)},${(22 - 20 * (y - low) / (high - low || 1)).toFixed(1)}`;
  const label = `${curve.name.split("/").at(-1).replaceAll("_", " ")}: from ${fig(ys[0])} to ${fig(ys.at(-1))}`;
  return el("svg", {class: "spark", role: "img", "aria-label": label, viewBox: "0 0 100 24", preserveAspectRatio: "none"},
    el("path", {d: `M${points.map(at).join("L")}`}));
}
function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", {class: "dim"}, empty);
  const head = columns.map(([label, kind, sort]) => el("th", {scope: "col", class: kind === "n" ? "n" : null,
    "aria-sort": sort?.active ? "other" : null},
    sort ? el("button", {"data-sort": sort.by}, label) : label));
  const body = rows.map(([key, ...cells]) => el("tr", {key}, cells.map((cell, i) => i === 0 ? el("th", {scope: "row"}, cell)
    : el("td", {class: columns[i][1], "data-label": columns[i][0]}, cell))));
  return el("table", {"aria-label": caption}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}
function pager(id, at, pages) {
  if (pages < 2) return null;
  return el("div", {class: "bar"}, el("button", {"data-page": id, "data-to": at - 1, disabled: at === 0 ? "" : null}, "Previous"),
    el("span", {}, `page ${at + 1} of ${pages}`), el("button", {"data-page": id, "data-to": at + 1, disabled: at + 1 >= pages ? "" : null}, "Next"));
}
const command = (what, text) => [el("dt", {}, what),
  el("dd", {}, el("code", {}, text), el("button", {"data-copy": text, "aria-label": `Copy the command: ${what}`}, "Copy"))];
function problemList(problems) {
  return el("section", {class: problems.length ? "wrong" : "calm", "aria-labelledby": "wrong"},
    el("h2", {id: "wrong"}, problems.length ? `${many(problems.length, "problem")}` : "No problems"),
    problems.length ? el("ul", {class: "problems"}, problems.slice(0, 12).map(([where, text, fix]) => el("li", {}, where && [where, ": "],
      visible(text),
      fix && [el("br"), el("code", {}, fix), " ", el("button", {"data-copy": fix, "aria-label": "Copy this command"}, "Copy")])),
      problems.length > 12 && el("li", {}, `and ${many(problems.length - 12, "more problem")}; rl4sys-learner status shows all`)) : el("p",
        {class: "dim"}, "No alarm, no failed client, no damage."));
}
function changeList(changes, withClient) {
  const rows = changes.slice(-15).reverse().map(r => [`${r.t}${r.event}${r.client_id}`,
    el("time", {datetime: new Date(r.t * 1000).toISOString(), title: clock(r.t)}, ago(r.t)),
    ...(withClient ? [r.client_id ? name(r.client_id) : "learner"] : []), told(r)]);
  return el("section", {"aria-labelledby": "changes"}, el("h2", {id: "changes"}, "Changes"),
    table("Changes", [["when"], ...(withClient ? [["client", "long"]] : []), ["what", "long"]], rows,
      "Nothing has changed since the learner's history begins."));
}
function machines(system) {
  const rows = system.slice(0, 40).map(s => [`${s.host}${s.pid}`, [name(s.host), ` ${visible(s.role ?? "")} ${s.pid ?? ""}`],
    s.client_id ? name(s.client_id) : "", fig(s.cpu), bytes(s.rss_bytes), share(s.host_cpu),
    `${bytes(s.host_memory_free_bytes)} of ${bytes(s.host_memory_bytes)}`, bytes(s.disk_free_bytes),
      `${bytes(s.net_sent_bytes_s)}/s out, ${bytes(s.net_received_bytes_s)}/s in`]);
  return el("section", {"aria-labelledby": "machines"}, el("h2", {id: "machines"}, "Machines"),
    table("Machines", [["process"], ["client", "long"], ["cores", "n"], ["memory", "n"], ["CPU of host", "n"], ["free memory", "n"],
      ["free disk", "n"], ["network", "n"]], rows,
      "The learner reports no figures of machines. It needs psutil, and system_every_s above 0."));
}
function waits(client) {
  if (client.state !== "running") return "–";
  return client.credit_steps > 0 ? "learner waits for data" : client.queued > 0 ? "actors wait: learner is busy" : "balanced";
}
const achieved = c => c.cells.return !== "-" ? `return ${c.cells.return}` : `reward/step ${c.cells["reward/step"]}`;
const fix = (address, id) => `rl4sys-learner client ${shell(address)} ${shell(id)} restart`;
const problemsOf = (address, id, client) => client.problems.map((text, i) => [el("a", {href: page(address, id)}, name(id)),
  text.split("; to restart it: ")[0], i === 0 && client.state === "failed" ? fix(address, id) : null]);
const isStale = l => !l.answered_unix_s || l.error || Date.now() / 1000 - l.answered_unix_s > STALE_S;
const silence = l => l.error ? `${l.error}${l.answered_unix_s ? `. The figures are from ${ago(l.answered_unix_s)}.` : ""}` : "";

// ---- the overview
const pages = {clients: 0, actors: 0};
let sortBy = "silent_s";

function overview(learners) {
  const clients = learners.flatMap(l => Object.entries(l.clients ?? {}).map(([id, c]) => ({id, c, l, curve: l.curves[id]}))).sort((a,
    b) => (b.c.state === "failed") - (a.c.state === "failed"));
  const running = clients.filter(x => x.c.state === "running"), trends = running.map(x => trend(x.curve?.points)),
    count = t => trends.filter(x => x === t).length;
  const problems = [...learners.flatMap(l => [...(l.error ? [[name(l.address), silence(l)]] : []),
    ...(l.problems ?? []).map(text => [name(l.address), text])]),
    ...clients.flatMap(({id, c, l}) => problemsOf(l.address, id, c))];
  const failed = clients.filter(x => x.c.state === "failed").length, sum = key => clients.reduce((n, x) => n + (x.c[key] ?? 0), 0);
  const changes = learners.flatMap(l => l.changes ?? []).sort((a, b) => a.t - b.t), newest = changes.at(-1), paces = running.map(x => waits(x.c)),
    hungry = paces.filter(w => w.includes("for data")).length;
  const lag = running.length ? Math.max(...running.map(x => x.c.lag)) : null, down = learners.filter(isStale).length;
  const known = trends.filter(Boolean).length, only = running.length === 1 ? running[0] : null;
  const pagesOf = Math.max(1, Math.ceil(clients.length / CLIENT_ROWS));
  pages.clients = Math.min(pages.clients, pagesOf - 1);
  const shown = clients.slice(pages.clients * CLIENT_ROWS, (pages.clients + 1) * CLIENT_ROWS);
  document.title = `${problems.length ? `(${problems.length}) ` : ""}Learners`;
  patch(main, [
    el("h1", {}, learners.length === 1 ? ["Learner ", name(learners[0].address)] : many(learners.length, "learner")),
    el("ul", {class: "strip", "aria-label": "At a glance"},
      card("Is it learning?", only ? `${achieved(only.c)} ${ARROWS[trends[0]] ?? ""}` : known ? [count("rising") && `${count("rising")} rising`,
        count("steady") && `${count("steady")} steady`, count("falling") && `${count("falling")} falling`].filter(Boolean).join(", ")
        : running.length ? "too early to say" : "no client runs",
        `${down ? "last known; " : ""}${only ? `${trends[0] ?? "too early to say"}; ` : ""}${running.length} of ${many(clients.length, "client")} running`,
          down ? "dim" : count("falling") ? "warn" : known ? "good" : "dim"),
      card("Is it fed?", `${num(sum("steps_per_s"))} steps/s`, running.length ? [`lag at most ${fig(lag)} versions; `,
        hungry ? `${hungry} of ${running.length} wait for data` : "no client waits for data"] : "", running.length && !down ? "" : "dim"),
      card("Is anything wrong?", down ? `${many(down, "learner")} silent` : failed ? `${many(failed, "client")} failed` : problems.length
        ? many(problems.length, "problem") : "nothing", `${num(learners.reduce((n, l) => n + (l.refused ?? 0), 0))} messages refused`,
        problems.length ? "bad" : "good"),
      card("Who is connected?", many(sum("actors_live"), "actor"), `of ${num(sum("actors_total"))} on record`, ""),
      card("What changed?", newest ? ago(newest.t) : "nothing", newest ? told(newest).slice(0, 90) : "", "")),
    problemList(problems),
    el("section", {"aria-labelledby": "clients"}, el("h2", {id: "clients"}, "Clients"),
      table("Clients", [["client"], ["state"], ["algorithm"], ["curve"], ["return", "n"], ["evaluation", "n"], ["reward/step", "n"], ["steps", "n"],
        ["steps/s", "n"], ["lag", "n"], ["version", "n"], ["actors", "n"], ["waits"]],
        shown.map(({id, c, l, curve}) => {
          const t = trend(curve?.points);
          return [`${l.address} ${id}`, el("a", {href: page(l.address, id)}, name(id)),
            el("span", {class: c.state === "failed" ? "bad" : c.state === "running" && !isStale(l) ? "good" : "warn"},
            isStale(l) ? `${c.state}, silent` : c.state),
            visible(c.cells.algorithm), el("span", {title: t ?? "too few points"}, spark(curve)), [c.cells.return, t && ` ${ARROWS[t]}`],
              fig(c.evaluator?.mean_return ?? c.evaluation?.mean_return), c.cells["reward/step"], c.cells.steps, c.cells["steps/s"], c.cells.lag,
              c.cells.version, num(c.actors_live), waits(c)];
        }), learners.every(isStale) ? "No learner answers." : "No client yet: no actor has connected."), pager("clients", pages.clients, pagesOf)),
    el("section", {"aria-labelledby": "learners"}, el("h2", {id: "learners"}, "Learners"),
      table("Learners", [["learner"], ["state"], ["version"], ["process", "n"], ["up", "n"], ["clients", "n"], ["journal", "n"]],
        learners.map(l => [l.address, name(l.address),
        el("span", {class: isStale(l) ? "bad" : "good"},
          isStale(l) ? (l.answered_unix_s ? `silent for ${span(Date.now() / 1000 - l.answered_unix_s)}` : "no answer") : "answers"),
          visible(l.version ?? "–"), String(l.pid ?? "–"), span(l.uptime_s),
        num(Object.keys(l.clients ?? {}).length), l.journal ? (l.journal.durable ? bytes(l.journal.used_bytes) : "in memory") : "–"]), "")),
    changeList(changes, true),
    machines(learners.flatMap(l => l.system ?? [])),
  ]);
}

// ---- the page of a client
function thinned(records) {
  // The newest quarter, and of the older ones at most half of the bound, at equal distances in time.
  const old = records.slice(0, -MAX_RECORDS / 4), gap = (old.at(-1).t - old[0].t) / (MAX_RECORDS / 2), last = new Map();
  const kept = old.filter(r => {
    const kind = `${r.pid} ${Object.keys(r.scalars ?? {})}`;
    return r.t - (last.get(kind) ?? -Infinity) >= gap && last.set(kind, r.t);
  });
  return [...kept, ...records.slice(-MAX_RECORDS / 4)].slice(-0.9 * MAX_RECORDS);
}
class Memory {
  constructor() { this.clear(null); }
  clear(epoch) { Object.assign(this, {epoch, next: 0, metrics: [], system: [], events: []}); }
  add(answer) {
    if (answer.epoch !== this.epoch) { const fresh = this.epoch === null && this.next === 0; this.clear(answer.epoch); if (!fresh) return; }
    for (const record of answer.records) {
      const kind = record.event === "metrics" ? this.metrics : record.event === "system" ? this.system : this.events;
      if (kind !== this.metrics || typeof record.step === "number") kind.push(record);
      if (kind.length > MAX_RECORDS) kind.splice(0, Infinity, ...thinned(kind));
    }
    this.events = this.events.slice(-MAX_EVENTS);
    this.next = answer.next;
  }
}
const memory = new Memory();
let charts = null;

function clientFrame() {
  patch(main, [el("div", {key: "top"}), el("section", {key: "curves", "aria-labelledby": "curves"},
    el("div", {class: "bar"}, el("h2", {id: "curves"}, "Curves"), el("span", {class: "right dim"}, "axis"),
      el("select", {id: "axis", "aria-label": "Axis of the curves"}, el("option", {value: "step"}, "steps"), el("option", {value: "t"}, "time")),
      [["in", "+", "Zoom in"], ["out", "−", "Zoom out"], ["left", "◀", "Earlier"], ["right", "▶", "Later"],
        ["all", "All", "Show all"]].map(([to, text, label]) => el("button", {"data-zoom": to, "aria-label": label, title: label}, text))),
    el("div", {id: "charts", class: "charts"})), el("div", {key: "rest"})]);
  charts = new Charts(document.getElementById("charts"), MARKED, told);
}

function clientPage(learner, overviewOf, client, actors) {
  const [top, , rest] = main.children, c = overviewOf, curve = learner.curves[here.client], t = trend(curve.points),
    problems = [...(learner.error ? [[null, silence(learner)]] : []), ...problemsOf(here.learner, here.client,
    c).map(([, ...more]) => [null, ...more])];
  const changes = memory.events.filter(r => (r.event in MARKED || r.event === "alarm") && (!r.client_id || r.client_id === here.client)),
    newest = changes.at(-1), saved = client.checkpoint ?? {};
  const best = c.evaluator?.mean_return ?? c.evaluation?.mean_return;
  document.title = `${problems.length ? `(${problems.length}) ` : ""}${here.client}`;
  patch(top, [el("h1", {}, name(here.client), " ",
    el("small", {}, el("span", {class: c.state === "failed" ? "bad" : c.state === "running" ? "good" : "warn"}, c.state),
    ` · ${visible(c.cells.algorithm)} · ${visible(client.worker_text)} · generation ${ago(c.generation_unix_s)}`)),
    el("ul", {class: "strip", "aria-label": "At a glance"},
      card("Is it learning?", `${achieved(c)}${t ? ` ${ARROWS[t]}` : ""}`, [isStale(learner) && "last known; ", best != null && `evaluation ${fig(best)}; `, t ?? "too early to say",
        `; version ${c.cells.version}`], isStale(learner) ? "dim" : t === "falling" ? "warn" : t ? "good" : "dim"),
      card("Is it fed?", `${c.cells["steps/s"]} steps/s`, `${waits(c)}; lag ${c.cells.lag}; queue ${c.cells.queue}`, ""),
      card("Is anything wrong?", isStale(learner) ? "learner is silent" : c.state === "failed" ? "failed" : problems.length ? many(problems.length,
        "problem") : "nothing", `unfit/stale ${c.cells["unfit/stale"]}`, problems.length ? "bad" : "good"),
      card("Who is connected?", many(c.actors_live, "actor"), [`on ${many(c.hosts, "host")}; of ${num(c.actors_total)} on record`,
        visible(Object.entries(c.libraries).map(([library, n], i) => `${i ? "," : ";"} ${num(n)} × ${library}`).join(""))], ""),
      card("What changed?", newest ? ago(newest.t) : "nothing", newest ? told(newest).slice(0, 90) : "", "")),
    problemList(problems)]);
  const parameters = Object.entries(client.parameters ?? {}), dead = memory.events.filter(r => DEAD.has(r.event) && r.client_id === here.client),
    lead = `rl4sys-learner client ${shell(here.learner)} ${shell(here.client)}`;
  patch(rest, [
    el("section", {"aria-labelledby": "actors"},
      el("h2", {id: "actors"}, "Actors ",
      el("small", {}, actors ? `${num(actors.live)} connected, ${num(actors.total)} on record${actors.reported < actors.total ? `, ${num(actors.reported)} reported` : ""}` : "")),
      actors?.hosts.length ? el("p", {}, el("span", {class: "dim"}, "by host: "),
        actors.hosts.flatMap(([host, n], i) => [i ? ", " : "", name(host), ` ${num(n)}`]),
        actors.more_hosts ? ` and ${many(actors.more_hosts, "more host")}` : "") : null,
      table("Actors", [["actor", "", "actor"], ["host", "long", "host"], ["state", ""], ["silent", "n", "silent_s"],
        ["steps", "n", "accepted_steps"], ["pending", "n", "pending"], ["library", "long", "library"]].map(([label, kind, by]) => [label, kind,
        by && {by, active: by === sortBy}]),
        (actors?.rows ?? []).map(a => [a.actor, name(a.actor), name(a.host), el("span", {class: a.live ? "good" : "dim"},
          a.live ? "connected" : "gone"), span(a.silent_s), num(a.accepted_steps), num(a.pending), visible(a.library ?? "")]),
          "No actor is on record."),
      pager("actors", actors?.page ?? 0, actors?.pages ?? 1)),
    el("div", {class: "columns"},
      el("div", {}, changeList(changes, false),
        el("section", {"aria-labelledby": "dead"}, el("h2", {id: "dead"}, "Dead letters and refusals ",
          el("small", {}, `${num(client.verdicts?.quarantined)} quarantined, ${num(client.verdicts?.refused)} refused, ${num(client.gap)} lost before`)),
          table("Dead letters and refusals", [["when"], ["actor", "long"], ["reason", "long"]],
            dead.slice(-15).reverse().map(r => [`${r.t}${r.actor_id}`, ago(r.t), name(r.actor_id ?? ""), visible(r.reason ?? told(r))]),
            "None since the history begins."),
          el("dl", {class: "copy"}, command("List them, on the learner's machine", `rl4sys-learner deadletter RUN --client ${shell(here.client)}`)))),
      el("div", {},
        el("section", {"aria-labelledby": "checkpoint"}, el("h2", {id: "checkpoint"}, "Checkpoint"),
          el("dl", {class: "facts"}, (saved.number ? [["number", num(saved.number)], ["version", num(saved.version)], ["age", span(saved.age_s)],
          ["took", `${fig(saved.duration_s)} s`]] : [["number", "none yet"]]).map(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]))),
        el("section", {"aria-labelledby": "commands"}, el("h2", {id: "commands"}, "Commands ", el("small", {}, "with keys, add --keys admin.keys")),
          el("dl", {class: "copy"},
          command("Restart its training", `${lead} restart`), command("Change a parameter", `${lead} set NAME=VALUE`),
            command("Remove an actor", `${lead} drop-actor ACTOR`), command("Remove the client", `${lead} forget`))))),
    machines((learner.system ?? []).filter(s => !s.client_id || s.client_id === here.client)),
    el("section", {"aria-labelledby": "parameters"}, el("h2", {id: "parameters"}, "Parameters in force"),
      parameters.length ? el("dl", {class: "facts many"}, parameters.map(([k, v]) => el("div", {}, el("dt", {}, visible(k)),
      el("dd", {}, visible(v !== null && typeof v === "object" ? JSON.stringify(v) : v ?? "–"))))) : el("p", {class: "dim"},
        "Not known while it starts."))]);
  charts.draw(memory, client.policy_lags ?? {});
}

// ---- asking
async function ask(path, parameters) {
  const url = parameters ? `${path}?${new URLSearchParams(parameters)}` : path;
  const answer = await fetch(url, {signal: AbortSignal.timeout(ANSWER_MS)});
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `${answer.status}`);
  return answer.json();
}

async function look() {
  const {learners} = await ask("/api/status");
  if (here.client === null) return overview(learners);
  const learner = learners.find(l => l.address === here.learner), client = learner?.clients?.[here.client];
  if (!client) {
    charts?.close(); charts = null; memory.clear(null);
    return patch(main, [el("h1", {}, name(here.client)),
      el("p", {}, learner?.error ? silence(learner) : learner ? "The learner has no such client." : "This page does not watch that learner."),
      el("p", {}, el("a", {href: "/"}, "All learners"))]);
  }
  const both = {learner: here.learner, client: here.client};
  const [about, actors] = await Promise.all([ask("/api/client", both), ask("/api/actors", {...both, page: pages.actors, sort: sortBy})]);
  for (let more = true, turns = 0; more && turns < 20; turns++) {
    const history = await ask("/api/history", {...both, since: memory.next});
    more = history.records.length > 50;
    memory.add(history);
  }
  if (!charts) clientFrame();
  clientPage(learner, client, about, actors);
}

let timer = null, busy = false;
async function turn() {
  clearTimeout(timer);
  if (document.hidden || busy) return;
  busy = true;
  const say = document.getElementById("alert");
  try {
    await look();
    say.textContent = "";
    document.getElementById("pulse").textContent = `updated ${new Date().toLocaleTimeString("en-GB")}`;
  } catch (error) {
    say.textContent = error instanceof TypeError
      || error.name === "TimeoutError" ? "The page's process does not answer: is rl4sys-learner web running? The figures are old."
      : `The page cannot be updated: ${visible(error.message)}`;
    if (error instanceof TypeError && !/fetch|network/i.test(error.message)) console.error(error);
  } finally {
    busy = false;
    timer = setTimeout(turn, POLL_MS);
  }
}

document.addEventListener("visibilitychange", turn);
document.addEventListener("click", async event => {
  const button = event.target.closest("button");
  if (!button) return;
  const {copy, page: which, to, sort, zoom} = button.dataset;
  if (which) { pages[which] = Number(to); turn(); }
  if (sort) { sortBy = sort; pages.actors = 0; turn(); }
  if (zoom) charts.zoom(zoom);
  if (copy) {
    const done = await navigator.clipboard?.writeText(copy).then(() => true, () => false);
    if (!done) getSelection().selectAllChildren(button.parentNode.querySelector("code"));
    button.textContent = done ? "Copied" : "Selected";
  }
});
document.addEventListener("change", event => { if (event.target.id === "axis") charts.axis(event.target.value); });
if (here.client !== null) patch(document.getElementById("crumbs"), [el("a", {href: "/"}, "Learners"), " / ", name(here.client)]);
turn();
