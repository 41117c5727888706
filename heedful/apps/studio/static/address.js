// Addresses of pages: those of the server, or of files beside each other in an exported site.

/** What an exported site left before this script; undefined where a studio answers. */
export const site = globalThis.heedfulSite;

const query = new URLSearchParams(location.search);

/** Shown in a frame of another page: without header and ways to other pages. */
export const embedded = query.get("embed") === "1";

/** The address of a page with settings; the start page has no name. */
export function addressOf(name, settings = "") {
  const path = site ? `${name || "index"}.html` : `/${name}`;
  const all = [settings, embedded ? "embed=1" : ""].filter(Boolean).join("&");
  return all ? `${path}?${all}` : path;
}

/** The name of the page that is open; empty for the start page. */
export function currentPage() {
  if (!site) return location.pathname.slice(1);
  const name = location.pathname.split("/").at(-1).replace(/\.html$/, "");
  return name === "index" ? "" : name;
}
