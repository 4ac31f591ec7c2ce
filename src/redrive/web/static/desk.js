// What the desk does with JavaScript: it stays live, takes shortcuts, and counts what is ticked. Everything works without.
"use strict";
(() => {
  const store = {
    get(name) { try { return localStorage.getItem(name); } catch { return null; } },
    set(name, value) { try { localStorage.setItem(name, value); } catch { /* private mode */ } },
  };

  // -- live: the page is fetched again and its parts replaced; never while hidden, nor under somebody's hands

  const every = Number(document.body.dataset.every || 0) * 1000;
  const button = document.querySelector("[data-live-button]");
  let live = store.get("redrive-live") !== "off", last = Date.now(), failed = "", busy = false;

  const busyHands = () => {
    const active = document.activeElement;
    const main = document.getElementById("content");
    const typing = active && main.contains(active) && active.matches("input:not([type=search], [type=checkbox], [type=radio]), textarea, select");
    return typing || main.querySelector("[data-selection] input[type=checkbox]:checked") !== null;
  };

  const tell = () => {
    if (!button) return;
    const seconds = Math.round((Date.now() - last) / 1000);
    const waits = live && busyHands();
    button.setAttribute("aria-pressed", String(live));
    button.classList.toggle("waits", Boolean(waits || failed));
    button.querySelector("[data-live-text]").textContent =
      failed ? failed : !live ? "Paused" : waits ? "Waits for you" : "Live";
    button.title = `Read ${seconds} s ago. ` + (live ? "Press to pause." : "Press to go on.");
  };

  const where = (element, region) => {
    if (!element || !region.contains(element)) return null;
    return { id: element.id, href: element.getAttribute("href"), text: element.textContent };
  };

  const refresh = async () => {
    if (busy) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Desk-Live": "1" }, credentials: "same-origin", cache: "no-store" });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (busyHands()) return;
      for (const region of document.querySelectorAll("[data-live]")) {
        const next = fresh.getElementById(region.id);
        if (!next || next.innerHTML === region.innerHTML) { if (next) region.className = next.className; continue; }
        const held = where(document.activeElement, region);
        const open = new Map([...region.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
        const left = region.scrollLeft;
        region.replaceChildren(...next.childNodes);
        region.className = next.className;
        region.scrollLeft = left;
        for (const each of region.querySelectorAll("details[id]")) if (open.has(each.id)) each.open = open.get(each.id);
        if (held) {
          const same = [...region.querySelectorAll("a, button, summary, [tabindex]")].find((each) =>
            held.id ? each.id === held.id : each.getAttribute("href") === held.href && each.textContent === held.text);
          if (same) same.focus({ preventScroll: true });
        }
      }
      document.title = fresh.title;
      last = Date.now();
      failed = "";
      ready();
    } catch {
      failed = "No answer";
    } finally {
      busy = false;
      tell();
    }
  };

  if (button && every) {
    button.hidden = false;
    button.addEventListener("click", () => {
      live = !live;
      store.set("redrive-live", live ? "on" : "off");
      tell();
    });
    setInterval(() => {
      tell();
      if (live && !document.hidden && !busyHands() && Date.now() - last >= every) refresh();
    }, 1000);
    document.addEventListener("visibilitychange", () => { if (live && !document.hidden && !busyHands()) refresh(); });
    tell();
  }

  // -- what is ticked

  const count = () => {
    const form = document.querySelector("[data-selection]");
    const output = form && form.querySelector("[data-pick-count]");
    if (!output) return;
    const boxes = [...form.querySelectorAll("input[name=id]")];
    const ticked = boxes.filter((box) => box.checked).length;
    output.textContent = `(${ticked})`;
    const all = form.querySelector("[data-pick-all]");
    if (all) {
      all.hidden = false;
      all.checked = ticked > 0 && ticked === boxes.length;
      all.indeterminate = ticked > 0 && ticked < boxes.length;
    }
  };

  let lastBox = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!(box instanceof HTMLInputElement) || box.name !== "id") return;
    const boxes = [...document.querySelectorAll("[data-selection] input[name=id]")];
    if (event.shiftKey && lastBox && boxes.includes(lastBox)) {
      const [from, to] = [boxes.indexOf(lastBox), boxes.indexOf(box)].sort((a, b) => a - b);
      for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
    }
    lastBox = box;
    count();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-pick-all]")) {
      for (const box of document.querySelectorAll("[data-selection] input[name=id]")) box.checked = event.target.checked;
    }
    count();
    tell();
  });

  const ready = () => count();
  ready();

  // -- shortcuts, which can be turned off

  const keysButton = document.querySelector("[data-keys-button]");
  let keys = store.get("redrive-keys") !== "off", after = "";
  const tellKeys = () => {
    if (!keysButton) return;
    keysButton.hidden = false;
    keysButton.setAttribute("aria-pressed", String(keys));
    keysButton.textContent = keys ? "Shortcuts are on" : "Shortcuts are off";
  };
  if (keysButton) {
    keysButton.addEventListener("click", () => {
      keys = !keys;
      store.set("redrive-keys", keys ? "on" : "off");
      tellKeys();
    });
    tellKeys();
  }
  document.addEventListener("keydown", (event) => {
    if (!keys || event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]):not([type=radio]), textarea, select");
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    if (after === "g") {
      after = "";
      const link = [...document.querySelectorAll("nav a[data-key]")].find((each) => each.dataset.key === event.key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "g") { after = "g"; setTimeout(() => { after = ""; }, 1500); }
    if (event.key === "p" && button && !button.hidden) button.click();
    if (event.key === "/") {
      const box = document.getElementById("q");
      const jobs = document.querySelector('nav a[data-key="j"]');
      event.preventDefault();
      if (box) { box.focus(); box.select(); } else if (jobs) jobs.click();
    }
    if (event.key === "?") {
      const help = document.getElementById("keys");
      if (help) { help.open = !help.open; help.querySelector("summary").focus(); }
    }
  });
})();
