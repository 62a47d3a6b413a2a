// Fetches the page every few seconds and replaces the overview by the fresh one.
"use strict";

(() => {
  const ID = "chainsched-overview";

  function say(words) {
    const place = document.querySelector(`#${ID} .chainsched-freshness`);
    if (place) place.textContent = words;
  }

  function replace(old, fresh) {
    const open = [...old.querySelectorAll("details")].map((part) => part.open);
    fresh.querySelectorAll("details").forEach((part, at) => { part.open = Boolean(open[at]); });
    old.replaceWith(document.adoptNode(fresh));
  }

  async function refresh() {
    const old = document.getElementById(ID);
    // A reader who has the keyboard focus inside keeps the place.
    if (!old || document.hidden) return;
    if (old.contains(document.activeElement)) {
      say("Not refreshed while it has the focus: click outside it.");
      return;
    }
    try {
      const response = await fetch(window.location.href, { credentials: "same-origin", cache: "no-store" });
      if (!response.ok) throw new Error(response.statusText);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById(ID);
      if (fresh) replace(old, fresh);
      else say("Not refreshed: log in again.");
    } catch {
      say("Not refreshed: the server does not answer as it should.");
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const overview = document.getElementById(ID);
    if (overview) window.setInterval(refresh, 1000 * Number(overview.dataset.refreshSeconds));
  });
})();
