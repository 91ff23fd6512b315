// Figures as people read them.

export function seconds(value: number | null): string {
  if (value === null) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  for (const unit of ["kB", "MB", "GB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes < 10 ? bytes.toFixed(1) : bytes.toFixed(0)} ${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)} TB`;
}

export const clock = (time: number, withSeconds = false): string =>
  new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}) });

export function until(time: number): string {
  const left = Math.max(0, time - Date.now() / 1000);
  if (left < 90) return `${Math.round(left)} s`;
  if (left < 5400) return `${Math.round(left / 60)} min`;
  return left < 172_800 ? `${Math.round(left / 3600)} h` : `${Math.round(left / 86_400)} days`;
}
