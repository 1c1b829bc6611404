"""The Beam job: references are shuffled, and one DoFn call writes one whole shard."""
