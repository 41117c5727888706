// Light or dark, before anything is drawn: what was chosen here, else what the system asks for.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return localStorage.getItem("heedful-theme") ?? "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  };
  const apply = () => {
    const theme = chosen();
    const dark = theme === "dark" || (theme === "auto" && system.matches);
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    if (!select) return; // a page that only says why it refuses
    select.value = chosen();
    select.addEventListener("change", () => {
      try {
        localStorage.setItem("heedful-theme", select.value);
      } catch {
        // then it lasts as long as the page
      }
      apply();
    });
  });
})();
