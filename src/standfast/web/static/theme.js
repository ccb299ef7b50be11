// Before the first paint, so that nothing flashes: the theme that was chosen, or the system's.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("standfast-theme");
  } catch {
    // No storage: the system's.
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const known = chosen === "light" || chosen === "dark";
  document.documentElement.dataset.theme = known ? chosen : dark ? "dark" : "light";
})();
