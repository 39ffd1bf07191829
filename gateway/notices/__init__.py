"""Notices that go out by themselves: statements and anomalies, by e-mail and webhook."""
