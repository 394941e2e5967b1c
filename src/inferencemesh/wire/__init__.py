"""Pure codecs: server-sent events, the APIs' stream trackers, header fields, bodies, rendering."""
