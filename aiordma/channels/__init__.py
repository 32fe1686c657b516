"""Message channels: connecting and accepting them; what RPC is built on."""
