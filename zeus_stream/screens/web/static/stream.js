// A worker that all windows of a browser share: one stream of events an address. A browser allows a server six
// connections, and a window with a stream of its own would take one of them.
const streams = new Map();

function leave(port) {
  for (const [address, stream] of streams) {
    if (stream.ports.delete(port) && !stream.ports.size) {
      stream.source.close();
      streams.delete(address);
    }
  }
}

function join(port, address) {
  let stream = streams.get(address);
  if (!stream) {
    stream = { source: new EventSource(address), ports: new Set(), last: null };
    streams.set(address, stream);
    const send = (kind, text) => {
      stream.last = [kind, text];
      stream.ports.forEach((each) => each.postMessage(stream.last));
    };
    for (const kind of ["now", "trouble"]) stream.source.addEventListener(kind, (event) => send(kind, event.data));
    stream.source.onerror = () => send("trouble", "not connected");
  }
  stream.ports.add(port);
  if (stream.last) port.postMessage(stream.last);
}

onconnect = ({ ports: [port] }) => {
  port.onmessage = ({ data }) => {
    leave(port);
    if (data) join(port, data);
  };
};
