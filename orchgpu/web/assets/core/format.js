// Numbers and times as people read them. Units are part of every text.

const two = (number) => String(number).padStart(2, "0");

/** 0.045 → "45 ms", 3.2 → "3.2 s", 75 → "1 m 15 s", 7300 → "2 h 1 m" */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${whole % 60} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} m`;
  return `${Math.floor(whole / 86400)} d`;
}

/** The larger unit only: 350 → "6 m" */
export const about = (seconds) =>
  seconds < 60 ? duration(Math.round(seconds)) : duration(seconds - (seconds % (seconds < 3600 ? 60 : 3600))).split(" ").slice(0, 2).join(" ");

export const ago = (then_s, now_s) =>
  then_s ? (now_s - then_s < 1 ? "now" : `${duration(Math.max(0, now_s - then_s))} ago`) : "–";

export function clock(time_s) {
  if (!time_s) return "–";
  const date = new Date(time_s * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The clock for today, the day before it otherwise; also the text of a tooltip. */
export function moment(time_s) {
  if (!time_s) return "–";
  const date = new Date(time_s * 1000);
  const sameDay = date.toDateString() === new Date().toDateString();
  if (sameDay) return clock(time_s);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(time_s)}`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  if (count === 0) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export const mebibytes = (count) => bytes(count === null || count === undefined ? count : count * 2 ** 20);

export const percent = (value) =>
  value === null || value === undefined ? "–" : `${Math.round(value)} %`;

export const count = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en").replaceAll(",", "\u202f");

export const nounOf = (number, one, many = `${one}s`) => (number === 1 ? one : many);

export const plural = (number, one, many) => `${count(number)} ${nounOf(number, one, many)}`;

/** Ids are hashes: their beginning identifies them; the whole is in the tooltip. */
export const shortId = (id, length = 12) =>
  id && id.length > length + 2 ? `${id.slice(0, length)}…` : (id ?? "–");

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// The input of a job; that of a step which takes several files is a list, and its text is shown.
export const inputOf = (job) => job.files_text || (job.key ? `${job.bucket}/${job.key}` : "");
export const fileName = (key) => (key ?? "").split("/").filter(Boolean).pop() ?? "";

/** "MEMORY_LIMIT" → "memory limit": closed words of the protocol in running text. */
export const words = (word) => (word ?? "").toLowerCase().replaceAll("_", " ");
