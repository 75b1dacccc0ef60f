// The newest board, asked for again and again for as long as the page is open.

const ANSWER_MS = 8000; // A controller that hangs with its socket open is away as well.
const ASK_MS_MIN = 500;
const ASK_MS_MAX = 5000; // Passes may be minutes apart; whether the controller is there is news.

/** Calls `onBoard(board)` for each new one, and `onState()` when the connection comes or goes. */
export class Newest {
  constructor(url, onBoard, onState) {
    this.url = url;
    this.onBoard = onBoard;
    this.onState = onState;
    this.connected = false;
    this.lastMs = null; // performance.now() of the newest board
    this.awayMs = performance.now(); // since when there is no connection
    this.seen = ""; // the newest board's pass
    this.askMs = ASK_MS_MIN;
    this.ask();
  }

  async ask() {
    let board = null;
    try {
      const answer = await fetch(this.url, { signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.ok) board = await answer.json(); // else no pass has ended yet
      this.change(true);
    } catch {
      this.change(false);
    }
    if (board) this.take(board);
    setTimeout(() => this.ask(), this.askMs);
  }

  take(board) {
    this.askMs = Math.min(Math.max(ASK_MS_MIN, 500 * board.interval_s), ASK_MS_MAX);
    const pass = `${board.pass_number} ${board.at_unix_s}`;
    if (pass === this.seen) return;
    this.seen = pass;
    this.lastMs = performance.now();
    this.onBoard(board);
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
