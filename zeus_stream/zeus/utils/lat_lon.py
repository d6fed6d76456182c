"""The place of a host, with Zeus's name. Nothing here asks the network where it is."""

from zeus_stream.zeus.replaced import replaced

get_ip_lat_long = replaced(
    "get_ip_lat_long",
    "No request leaves the host; import the carbon intensity of your region with `zeus-stream signals`"
    " (docs/how-to/costs-and-carbon.md).",
)
