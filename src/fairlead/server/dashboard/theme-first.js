// Runs before the first paint, so that the chosen theme does not flash; theme.js does the rest.
(function () {
  try {
    var chosen = localStorage.getItem("fairlead.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch (refused) { /* storage may be forbidden: then the system's theme holds */ }
})();
