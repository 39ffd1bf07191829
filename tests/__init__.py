"""Tests of Fareway; they mirror the packages."""
