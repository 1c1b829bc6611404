"""Helpers and writers shared by the tests."""
