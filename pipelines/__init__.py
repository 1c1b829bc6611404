"""Conversion of data sets as a Beam job, which shuffles references and writes one shard with each call."""
