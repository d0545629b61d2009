// Runs before the first paint, so that a page with a chosen theme does not flash in the system's.
"use strict";
try {
  const chosen = localStorage.getItem("paceline.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is forbidden: the page follows the system.
}
