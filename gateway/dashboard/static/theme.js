/* Loaded in the head, before anything is drawn: the theme that was chosen, if one was. */
"use strict";
(function () {
  var root = document.documentElement;
  var stored = null;
  try {
    stored = window.localStorage.getItem("fareway-theme");
  } catch (error) {
    stored = null; // storage may be forbidden; then the system's theme holds
  }
  if (stored === "light" || stored === "dark") {
    root.dataset.theme = stored;
  }
  root.classList.add("scripted");
})();
