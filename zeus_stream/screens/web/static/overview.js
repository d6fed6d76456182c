// The live part of the overview: server-sent events with HTML that the server has escaped.
const place = document.getElementById("now");
const state = document.getElementById("state");
let source = null;

// Changes only what differs, so that focus, selection and a screen reader's place stay.
function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) { old.replaceWith(fresh); return; }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
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

// One stream a tab, and none while the tab is hidden: a browser allows six connections to a server.
function open() {
  if (source || document.hidden) return;
  source = new EventSource(place.dataset.src);
  source.addEventListener("now", (event) => show(event.data));
  source.addEventListener("trouble", (event) => trouble(event.data));
  source.onerror = () => trouble("not connected");
}

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

function close() {
  if (source) source.close();
  source = null;
}

document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
addEventListener("pagehide", close);
addEventListener("pageshow", open);
open();
