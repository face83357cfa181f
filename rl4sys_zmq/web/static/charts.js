// The curves of a client, drawn by plotly, which is loaded with the first of them. All have one axis: a zoom of one zooms all.
const DRAW_MS = 2000, MOST = 16, WINDOW = 10, FIRST = ["losses/policy_loss", "losses/value_loss", "losses/entropy", "charts/SPS", "dist/policy_lag"];
const SHOWN_ELSEWHERE = /^(charts\/episod|charts\/mean_reward$|eval\/|dist\/version$|clone\/)/;
const CONFIG = {displayModeBar: false, responsive: true, doubleClick: false, scrollZoom: false};
let library = null;

function load() {
  library ??= new Promise((done, fail) => {
    const script = Object.assign(document.createElement("script"), {src: "/static/plotly.min.js", onload: () => done(globalThis.Plotly),
      onerror: () => fail(new Error("plotly cannot be loaded"))});
    document.head.append(script);
  });
  return library;
}
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const local = t => t * 1000 - new Date().getTimezoneOffset() * 60000;  // plotly shows times as UTC
const numeric = value => typeof value === "number" ? value : null;

export class Charts {
  constructor(root, marked, told) {
    Object.assign(this, {root, marked, told, boxes: new Map(), x: "step", range: null, drawn: 0, last: null, working: false});
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.last && this.draw(...this.last, true);
    this.dark.addEventListener("change", this.redraw);
  }

  close() {
    this.dark.removeEventListener("change", this.redraw);
    for (const box of this.boxes.values()) globalThis.Plotly?.purge(box);
    this.root.replaceChildren();
  }

  axis(x) { this.x = x; this.range = null; this.redraw(); }

  zoom(to) {
    const [low, high] = this.range ?? this.extent ?? [0, 1], size = high - low, middle = (low + high) / 2;
    const half = {in: size / 4, out: size}[to], shift = {left: -size / 4, right: size / 4}[to];
    if (half) this.range = [middle - half, middle + half];
    if (shift) this.range = [low + shift, high + shift];
    if (to === "all") this.range = null;
    this.redraw();
  }

  async draw(memory, lags, now = false) {
    this.last = [memory, lags];
    if (this.working || (!now && performance.now() - this.drawn < DRAW_MS)) return;
    this.working = true;
    try {
      const plotly = await load();
      this.drawn = performance.now();
      for (const chart of this.charts(memory, lags)) this.show(plotly, chart);
    } finally { this.working = false; }
  }

  charts({metrics, system, events}, lags) {
    const at = record => this.x === "t" ? local(record.t) : record.step;
    const series = tag => metrics.filter(r => numeric(r.scalars?.[tag]) !== null).map(r => [at(r), r.scalars[tag]]);
    const line = (points, name, more) => ({x: points.map(p => p[0]), y: points.map(p => p[1]), name, mode: points.length > 1 ? "lines" : "markers",
      line: {width: 1.6, ...more}, hovertemplate: "%{y:.5g}<extra>%{fullData.name}</extra>"});
    const smooth = points => points.map((p, i) => { const part = points.slice(Math.max(0, i - WINDOW + 1), i + 1); return [p[0],
      part.reduce((s, q) => s + q[1], 0) / part.length]; });
    const all = metrics.map(at);
    this.extent = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
    const returns = series("charts/episodic_return"), rewards = series("charts/mean_reward"), evaluated = series("eval/mean_return"),
      main = returns.length ? returns : rewards, word = returns.length ? "return" : "reward/step";
    const found = [{id: "return", wide: "wide", title: returns.length ? "Return of episodes" : "Reward per step", marks: true,
      traces: [line(main, word, {color: css("--faint"), width: 1}), line(smooth(main), `mean of ${WINDOW}`, {color: css("--accent"), width: 2.4}),
      ...(evaluated.length ? [line(evaluated, "evaluation", {color: css("--good"), width: 2.4})] : [])], events}];
    if (returns.length && rewards.length) found.push({id: "reward", title: "reward per step",
      traces: [line(rewards, "reward/step", {color: css("--accent")})]});
    const tags = [...new Set(metrics.slice(-50).flatMap(r => Object.keys(r.scalars ?? {})))].filter(tag => !SHOWN_ELSEWHERE.test(tag)).sort();
    tags.sort((a, b) => (FIRST.indexOf(a) + 1 || 99) - (FIRST.indexOf(b) + 1 || 99));
    for (const tag of tags.slice(0, MOST)) found.push({id: tag, title: tag.split("/").at(-1).replaceAll("_", " "),
      traces: [line(series(tag), tag, {color: css("--accent")})]});
    const lagged = Object.entries(lags).filter(([, n]) => typeof n === "number");
    found.push({id: "lags", title: "steps by lag on arrival (versions)", bars: true,
      traces: [{type: "bar", x: lagged.map(p => p[0]), y: lagged.map(p => p[1]), marker: {color: css("--accent")},
      hovertemplate: "lag %{x}: %{y:,} steps<extra></extra>"}]});
    const steps = t => { const i = metrics.findIndex(r => r.t >= t); return i < 0 ? metrics.at(-1)?.step ?? null : metrics[i].step; };
    for (const [key, title] of [["cpu", "CPU cores by process"], ["rss_bytes", "memory by process (bytes)"]]) {
      const by = new Map();
      for (const r of system) if (numeric(r[key]) !== null) { const who = `${r.role} ${r.name || r.pid}`.slice(0, 40); by.set(who,
        [...(by.get(who) ?? []), [this.x === "t" ? local(r.t) : steps(r.t), r[key]]]); }
      if (by.size) found.push({id: key, title, legend: by.size > 1, half: true,
        traces: [...by].slice(0, 8).map(([who, points]) => line(points, who, {}))});
    }
    this.steps = steps;
    return found;
  }

  show(plotly, {id, title, traces, wide, half, bars, marks, legend, events}) {
    let box = this.boxes.get(id);
    if (!box) {
      box = Object.assign(document.createElement("div"), {className: `chart ${wide ?? ""} ${half ? "half" : ""}`});
      box.setAttribute("role", "img");
      this.boxes.set(id, box);
      this.root.append(box);
    }
    const newest = traces.at(-1)?.y.at(-1);
    box.setAttribute("aria-label", `${title}${typeof newest === "number" && !bars ? `: newest ${+newest.toPrecision(4)}` : ""}`);
    const shapes = [], text = css("--dim"), time = this.x === "t";
    if (marks) {
      const known = events.filter(r => r.event in this.marked).slice(-40), x = known.map(r => time ? local(r.t) : this.steps(r.t)),
        tops = traces[0].y.filter(Number.isFinite);
      for (const at of new Set(x)) if (at !== null) shapes.push({type: "line", x0: at, x1: at, y0: 0, y1: 1, yref: "paper",
        line: {color: css("--warn"), width: 1, dash: "dot"}});
      const height = tops.length ? tops.reduce((a, b) => Math.max(a, b)) : 0;
      const notes = known.map(r => plain(`${this.marked[r.event]}: ${this.told(r)}`.slice(0, 160)));
      traces.push({x, y: x.map(() => height), mode: "markers", name: "changes", text: notes, hovertemplate: "%{text}<extra></extra>",
        marker: {color: css("--warn"), symbol: "triangle-down", size: 9}});
    }
    const axis = {gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, tickfont: {color: text, size: 10.5}, automargin: true};
    const ranged = bars ? {type: "category"} : {type: time ? "date" : "linear", autorange: this.range === null,
      ...(this.range ? {range: this.range} : {}), tickformat: time ? undefined : "~s"};
    const layout = {title: {text: title, font: {size: 12.5, color: text}, x: 0.012, xref: "container", xanchor: "left", y: 0.97, yanchor: "top",
      yref: "container"}, margin: {l: 8, r: 10, t: 26, b: 8}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: "system-ui, sans-serif", color: css("--text")},
      xaxis: {...axis, ...ranged, nticks: wide ? 12 : 5}, yaxis: {...axis, ...(bars || legend ? {} : flat(traces[0].y)),
        exponentformat: traces[0].y.every(v => Math.abs(v) < 0.01) ? "e" : "SI", fixedrange: true, nticks: 5, rangemode: bars ? "tozero" : "normal"},
        dragmode: bars ? false : "zoom", hovermode: wide ? "x unified" : "closest", hoverlabel: {bgcolor: css("--panel"), bordercolor: css("--line"),
        font: {color: css("--text")}},
      shapes, showlegend: Boolean(wide || legend), legend: {orientation: "h", x: 1, xanchor: "right", y: 1.02, yanchor: "bottom",
        font: {color: text, size: 11}}};
    const fresh = !box.data;
    plotly.react(box, traces, layout, CONFIG);
    if (fresh && !bars) {
      box.on("plotly_relayout", change => {
        const low = change["xaxis.range[0]"], high = change["xaxis.range[1]"];
        if (low === undefined) return;
        this.range = [low, high].map(v => typeof v === "number" ? v : Date.parse(v.replace(" ", "T") + "Z"));
        this.redraw();
      });
      box.on("plotly_doubleclick", () => this.zoom("all"));
    }
  }
}
// A curve that is constant lies in the middle of a range of its own size, not of 2.
const flat = values => values.length && values[0] !== 0 && values.every(v => v === values[0]) ? {range: [0.8, 1.2].map(f => f * values[0]).sort((a,
  b) => a - b)} : {autorange: true};
// plotly reads a few HTML tags in texts: without < and &, there are none.
const plain = text => text.replaceAll("&", "+").replaceAll("<", "‹").replaceAll(">", "›");
