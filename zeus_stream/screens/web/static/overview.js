// The live part of the overview: server-sent events with HTML that the server has escaped.
const place = document.getElementById("now");
const state = document.getElementById("state");

// Changes only what differs, so that focus, selection and a screen reader's place stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  const own = old.nodeName === "DETAILS" ? "open" : "";  // what somebody has opened stays open
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== own) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, at) => before[at] ? morph(before[at], node) : old.append(node));
  before.slice(after.length).forEach((node) => node.remove());
}

function show(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html").body;
  const next = place.cloneNode(false);
  next.append(...fresh.childNodes);
  next.classList.remove("old");
  morph(place, next);
  state.textContent = "live";
  dispatchEvent(new CustomEvent("now"));
  if (place.querySelector("[data-ended]")) setTimeout(() => location.reload(), 2000);
}

function trouble(text) {
  place.classList.add("old");
  state.textContent = text;
}

// The stream comes from a worker that all windows share. A hidden window leaves it.
const address = new URL(place.dataset.src, location.href).href;
const worker = new SharedWorker(place.dataset.worker);
worker.port.onmessage = ({ data: [kind, text] }) => kind === "now" ? show(text) : trouble(text);

// The power of the last hour changes slowly, and costs a query.
const hour = document.getElementById("hour");
async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(hour.dataset.src);
  if (!answer.ok) return;
  const next = hour.cloneNode(false);
  next.append(...new DOMParser().parseFromString(await answer.text(), "text/html").body.childNodes);
  morph(hour, next);
}
if (hour) setInterval(refresh, 15000);

const follow = () => worker.port.postMessage(document.hidden ? null : address);
document.addEventListener("visibilitychange", follow);
addEventListener("pagehide", () => worker.port.postMessage(null));
addEventListener("pageshow", follow);
follow();
