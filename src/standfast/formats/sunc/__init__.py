"""The `.sunc` format: snapshots of AMR trees and lattice gauge fields."""
