// Boards as they are published, for as long as the page is open.
//
// The browser reconnects a broken stream by itself, but not one that was refused, and it
// says nothing when a controller hangs with its socket open; both are handled here.

const RETRY_MS = [1000, 2000, 4000, 8000];

/** Calls `onBoard(board)` for each, and `onState()` when the connection comes or goes. */
export class Boards {
  constructor(url, onBoard, onState) {
    this.url = url;
    this.onBoard = onBoard;
    this.onState = onState;
    this.connected = false;
    this.lastMs = null; // performance.now() of the newest board
    this.awayMs = performance.now(); // since when there is no connection
    this.failures = 0;
    this.open();
  }

  open() {
    const source = new EventSource(this.url);
    source.addEventListener("open", () => this.change(true));
    source.addEventListener("board", (event) => {
      this.failures = 0;
      this.lastMs = performance.now();
      this.change(true);
      this.onBoard(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      this.change(false);
      if (source.readyState !== EventSource.CLOSED) return;
      const wait = RETRY_MS[Math.min(this.failures++, RETRY_MS.length - 1)];
      setTimeout(() => this.open(), wait);
    });
  }

  change(connected) {
    if (this.connected === connected) return;
    this.connected = connected;
    this.awayMs = connected ? null : performance.now();
    this.onState();
  }

  /** Seconds without a connection; 0 while there is one. */
  awayS() {
    return this.awayMs === null ? 0 : (performance.now() - this.awayMs) / 1000;
  }

  /** Seconds since the newest board; null before the first. */
  ageS() {
    return this.lastMs === null ? null : (performance.now() - this.lastMs) / 1000;
  }
}
