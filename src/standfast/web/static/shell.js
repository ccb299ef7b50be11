// What all pages have: the theme, the menu, the keys, the banner, times that go on.
import { watch } from "./api.js";
import { boot, byId, fill } from "./dom.js";
import { age } from "./format.js";
import { listen } from "./keys.js";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new CustomEvent("theme"));
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("standfast-theme", theme);
  } catch {
    // It lasts as long as the page.
  }
  setTheme(theme);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("standfast-theme");
  } catch {
    // No storage: the system's.
  }
  if (!chosen) setTheme(event.matches ? "dark" : "light");
});
byId("theme").addEventListener("click", switchTheme);
byId("menu").addEventListener("click", () => {
  const isOpen = byId("places").classList.toggle("open");
  byId("menu").setAttribute("aria-expanded", isOpen);
});
listen({ theme: switchTheme });

setInterval(() => {
  for (const each of document.querySelectorAll("time[datetime]")) {
    const text = age(each.getAttribute("datetime"));
    if (each.textContent !== text) each.textContent = text;
  }
}, 10000);

function trouble(error) {
  const banner = byId("banner"),
    pulse = byId("pulse");
  banner.hidden = error === null;
  pulse.className = error === null ? "pulse on" : "pulse off";
  pulse.title = error === null ? "up to date" : "not reached";
  if (error === null) return;
  const said = error.status ? `The store cannot be read: ${error.message}.` : error.message;
  fill(banner, `${said} What is shown is as it was; this page tries again by itself.`);
}

const place = boot().store?.url;
if (place) {
  byId("place").textContent = `\u200e${place}`;
  byId("place").title = place;
}
byId("pulse").className = "pulse on";
watch(
  boot().store?.state,
  (store) => document.dispatchEvent(new CustomEvent("changed", { detail: store })),
  trouble
);
