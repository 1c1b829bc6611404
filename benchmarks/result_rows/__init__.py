"""Rows of the table of results: public sets, our side, and the scores of both sides."""
