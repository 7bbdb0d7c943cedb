// A page that was exported into a file: what it asks is answered from the file itself.

const element = document.getElementById("kept");

// When it was made, where it starts, and answers by what was asked; null on a page that has a server.
export const kept = element ? JSON.parse(element.textContent) : null;

const WHICH_PART = new Set(["filter", "sort", "num", "to", "bins"]);

// Whether a question has an answer, whatever it is asked of; on a page that has a server each has one.
export function isAnswered(path) {
  return !kept || Object.keys(kept.answers).some((key) => key === path || key.startsWith(`${path}&`));
}

// Whether this very question has an answer.
export function has(path, params) {
  return !kept || keyOf(path, Object.entries(params)) in kept.answers;
}

function keyOf(path, pairs) {
  return [path, ...pairs.map(([name, value]) => `${name}=${value}`).sort()].join("&");
}

export async function keptAnswer(path, pairs) {
  const asked = pairs.filter(([name]) => !WHICH_PART.has(name) && !(path === "list" && name === "from"));
  const key = keyOf(path, asked);
  if (!(key in kept.answers)) throw new Error("This file has some trajectories of its run, and what belongs to them; this was left out.");
  const told = await unpacked(kept.answers[key]);
  if (path !== "list") return told;
  const { from = 0, num = told.rows.length } = Object.fromEntries(pairs);
  return { ...told, rows: told.rows.slice(Number(from), Number(from) + Number(num)) };
}

function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}
