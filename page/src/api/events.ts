// Server-sent events out of a stream of bytes. `EventSource` cannot send a token.

export type ServerEvent = { name: string; data: any; id: string };

const LONGEST_PART = 12;

export async function* eventsOf(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let drawn = performance.now();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
      rest = blocks.pop()!;
      for (const block of blocks) {
        const event = parsed(block);
        if (event !== null) yield event;
      }
      // What has arrived already is read without a pause, and nothing would be drawn until all of it has been.
      if (performance.now() - drawn < LONGEST_PART) continue;
      await new Promise((resolve) => setTimeout(resolve));
      drawn = performance.now();
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parsed(block: string): ServerEvent | null {
  let name = "message";
  let id = "";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length === 0 ? null : { name, id, data: JSON.parse(data.join("\n")) };
}
