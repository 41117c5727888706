// Files that a page sends to the studio.

import { StudioError } from "./api.js";
import { number } from "./dom.js";

/** A file in base64. */
export async function base64Of(file, most) {
  if (file.size > most) {
    throw new StudioError({ what: `The file has ${number(file.size)} bytes; at most ${number(most)} are read here`, where: file.name, remedy: "Make the picture smaller, or use heedful classify, which takes any" });
  }
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new StudioError({ what: "The file cannot be read", where: file.name, remedy: "Choose it again" }));
    reader.readAsDataURL(file);
  });
}
