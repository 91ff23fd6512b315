// Bytes into the reader's downloads. The kind is always the one that no browser shows or runs.

export function download(path: string, content: Uint8Array<ArrayBuffer>): void {
  const address = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = path.split("/").pop()!.replace(/[\x00-\x1f\x7f"\\<>|:*?\u202a-\u202e\u2066-\u2069]/g, "_") || "file";
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function bytesOf(encoded: string): Uint8Array<ArrayBuffer> {
  const text = atob(encoded);
  const content = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) content[index] = text.charCodeAt(index);
  return content;
}
