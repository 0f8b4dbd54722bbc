"""Things that generate and train: each room satisfies the protocols of `ostinato.protocols`."""
