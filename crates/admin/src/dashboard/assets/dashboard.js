// Live numbers, copying, and the / shortcut. Every page works without this script.
"use strict";

// Replaces the parts of the page that an event carries. The server has rendered them.
function show(event) {
  const parts = document.createElement("template");
  parts.innerHTML = event.data;
  for (const part of parts.content.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${part.dataset.live}"]`);
    if (old) old.replaceWith(part);
  }
}

// Follows the live numbers until the page is paused or hidden. A lost connection is tried again.
class Live {
  constructor(button, status) {
    this.button = button;
    this.status = status;
    this.paused = false;
    this.retry = 1000;
    button.hidden = false;
    button.addEventListener("click", () => this.pause(!this.paused));
    document.addEventListener("visibilitychange", () => this.follow());
    this.follow();
  }

  pause(paused) {
    this.paused = paused;
    this.button.textContent = paused ? "Resume" : "Pause";
    this.button.setAttribute("aria-pressed", String(paused));
    this.follow();
  }

  follow() {
    clearTimeout(this.timer);
    if (this.source) this.source.close();
    this.source = null;
    if (this.paused || document.hidden) {
      this.status.textContent = this.paused ? "Paused" : "";
      return;
    }
    this.source = new EventSource("events");
    this.source.addEventListener("now", (event) => {
      this.retry = 1000;
      if (this.status.textContent !== "Live") this.status.textContent = "Live";
      show(event);
    });
    this.source.addEventListener("error", () => {
      this.source.close();
      this.status.textContent = "Connection lost, trying again";
      this.timer = setTimeout(() => this.follow(), this.retry);
      this.retry = Math.min(this.retry * 2, 30000);
    });
  }
}

function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  const done = () => {
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  };
  // Without TLS, browsers give pages of other machines no clipboard: select the text instead.
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(document.getElementById(button.dataset.copy));
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select);
  else select();
}

const pause = document.getElementById("pause");
if (pause) new Live(pause, document.getElementById("live-status"));

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  const find = document.getElementById("find");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && find) {
    event.preventDefault();
    find.focus();
    find.select();
  }
});
