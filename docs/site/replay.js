// In place of a server: what `zeus-stream web` said during a recorded run. Comes before the scripts of the page.
/* global recorded */
const S = 1e9;

// The live part, in the rhythm in which it came, again and again.
window.SharedWorker = class {
  port = { postMessage() {}, set onmessage(show) { play(show); } };
};
function play(show) {
  const { states } = recorded;
  const begin = states[0][0], last = states.at(-1)[0];
  for (const [at, text] of states) setTimeout(() => show({ data: ["now", text] }), at - begin);
  setTimeout(() => play(show), last - begin + 5000);
}

// The part of a chart that is on screen.
function power(asked) {
  const whole = recorded.powers[asked.getAll("gpu").join(" ")];
  const begin = Number(BigInt(asked.get("from")) - BigInt(whole.from)) / S;
  const end = begin + Number(BigInt(asked.get("to")) - BigInt(asked.get("from"))) / S;
  const kept = whole.t_s.flatMap((t, at) => t >= begin - whole.bucket_s && t <= end + whole.bucket_s ? [at] : []);
  const part = { ...whole, text: kept.length < whole.t_s.length ? "A part of the recorded run." : whole.text };
  for (const name of ["t_s", "mean_w", "least_w", "most_w", "limit_w"]) part[name] = kept.map((at) => whole[name][at]);
  return part;
}

window.fetch = async (address) => {
  const { pathname, searchParams } = new URL(address, location.href);
  const json = pathname.endsWith("/power") ? power(searchParams) : { steps: [] };
  return { ok: !pathname.endsWith("/hour"), json: async () => json };
};

addEventListener("DOMContentLoaded", () => {
  const note = document.createElement("p");
  note.className = "under";
  note.textContent = "A recorded run on simulated GPUs. `zeus-stream run --web -- python train.py` shows yours.";
  document.getElementById("main").prepend(note);
  for (const each of document.querySelectorAll("textarea, form button")) each.disabled = true;
});
