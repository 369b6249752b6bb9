"use strict";
// Everything shown is data: it reaches the page as text, never as markup.
(() => {
  const run = JSON.parse(document.getElementById("run").textContent);
  const make = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined && text !== null) element.textContent = String(text);
    if (className) element.className = className;
    return element;
  };
  const colour = (outcome) => (outcome === "pass" ? "pass" : outcome === "skip" ? "skip" : "bad");
  const seconds = (value) => (typeof value === "number" ? value.toFixed(1) + " s" : "");
  const list = document.getElementById("trials");
  const place = document.getElementById("trial");
  let stop = () => {};

  const screenAt = (trial, index) => {
    const rows = [];
    for (let i = 0; i <= index; i += 1) {
      for (const [row, text] of trial.frames[i].rows) rows[row] = text;
    }
    return rows.map((text) => text || "").join("\n");
  };

  const show = (trial) => {
    stop();
    place.replaceChildren(make("h2", trial.name));
    place.append(make("p", trial.outcome.toUpperCase() + " · " + trial.scenario, "outcome " + colour(trial.outcome)));
    if (trial.messages.length) place.append(make("pre", trial.messages.join("\n"), "told"));
    if (trial.diagnosis) place.append(make("pre", trial.diagnosis.join("\n"), "told"));
    if (!trial.frames.length) {
      place.append(make("p", "There is no recording of this trial."));
      return;
    }
    const side = make("div", null, "side");
    const screen = make("pre", "", "screen");
    const controls = make("div", null, "controls");
    const button = make("button", "Play");
    const slider = make("input");
    slider.type = "range";
    slider.min = 0;
    slider.max = trial.frames.length - 1;
    slider.setAttribute("aria-label", "Place in the recording");
    const clock = make("span", "");
    controls.append(button, slider, clock);
    const left = make("div");
    left.append(controls, screen);
    const events = make("div", null, "events");
    const buttons = trial.events.map((event) => {
      const line = make("button", event.at_s.toFixed(1) + " s  " + event.text);
      line.addEventListener("click", () => { stop(); seek(frameAt(event.at_s)); });
      events.append(line);
      return line;
    });
    side.append(left, events);
    place.append(side);
    const frameAt = (at) => {
      let index = 0;
      while (index + 1 < trial.frames.length && trial.frames[index + 1].at_s <= at) index += 1;
      return index;
    };
    const seek = (index) => {
      slider.value = index;
      screen.textContent = screenAt(trial, index);
      const at = trial.frames[index].at_s;
      clock.textContent = seconds(at);
      let current = -1;
      trial.events.forEach((event, number) => { if (event.at_s <= at + 0.05) current = number; });
      buttons.forEach((line, number) => line.setAttribute("aria-current", String(number === current)));
    };
    let timer = null;
    stop = () => {
      if (timer !== null) clearTimeout(timer);
      timer = null;
      button.textContent = "Play";
    };
    const step = () => {
      const index = Number(slider.value);
      if (index + 1 >= trial.frames.length) return stop();
      const pause = Math.min(2000, 1000 * (trial.frames[index + 1].at_s - trial.frames[index].at_s));
      timer = setTimeout(() => { seek(index + 1); step(); }, pause);
      return undefined;
    };
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      button.textContent = "Pause";
      if (Number(slider.value) + 1 >= trial.frames.length) seek(0);
      return step();
    });
    slider.addEventListener("input", () => { stop(); seek(Number(slider.value)); });
    // What was on the screen when the last thing happened: the very end is OpenCode's farewell.
    const last = trial.events[trial.events.length - 1];
    seek(last ? frameAt(last.at_s) : trial.frames.length - 1);
  };

  document.getElementById("about").textContent = run.about;
  for (const line of run.summary) document.getElementById("summary").append(make("li", line));
  for (const trial of run.trials) {
    const row = make("tr", null, "trial");
    row.tabIndex = 0;
    row.append(make("td", trial.outcome.toUpperCase(), "outcome " + colour(trial.outcome)));
    row.append(make("td", trial.name + (trial.repeat > 1 || trial.attempt > 1 ? ` (${trial.repeat}.${trial.attempt})` : "")));
    row.append(make("td", trial.profile || ""));
    row.append(make("td", trial.source || ""));
    row.append(make("td", seconds(trial.duration_s)));
    row.append(make("td", trial.requests));
    const open = () => { show(trial); place.scrollIntoView({ block: "start" }); };
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    list.append(row);
  }
  const first = run.trials.find((trial) => colour(trial.outcome) === "bad") || run.trials[0];
  if (first) show(first);
})();
