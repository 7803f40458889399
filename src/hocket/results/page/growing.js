// Films: their names, and those that are played while they are still being written.
const REFETCH_MS = 700;

/** The camera that a film is named after. */
const cameraOf = (name) => decodeURIComponent(name.split("/").pop()).replace(/\.mp4$/, "");

/** Feed a video that grows to a player, until `stop` is called or the file is sealed. */
function grow(video, address, sealed) {
  const source = new MediaSource(), url = URL.createObjectURL(source);
  let at = 0, over = false, buffer = null, timer = 0;
  video.src = url;
  const stop = () => { over = true; clearTimeout(timer); URL.revokeObjectURL(url); };
  const more = async () => {
    if (over) return;
    try {
      const answer = await fetch(`${address}?from=${at}`, { cache: "no-store" });
      // 204 says that nothing is new, 205 that the file has got its name.
      if (answer.status === 205) { sealed(); return; }
      if (answer.status === 200 && !over) {
        const data = new Uint8Array(await answer.arrayBuffer());
        if (!buffer) {
          const codec = codecOf(data);
          if (!codec) { timer = setTimeout(more, REFETCH_MS); return; }
          buffer = source.addSourceBuffer(`video/mp4; codecs="${codec}"`);
        }
        if (over) return;
        buffer.appendBuffer(data);
        await new Promise((done) => buffer.addEventListener("updateend", done, { once: true }));
        at += data.length;
        const end = video.buffered.length ? video.buffered.end(video.buffered.length - 1) : 0;
        // Who fell far behind what is written sees the end of it, unless they paused.
        if (!video.paused && end - video.currentTime > 6) video.currentTime = end - 1;
        video.dispatchEvent(new Event("progress"));
        if (video.paused && at === data.length) video.play().catch(() => {});
      }
    } catch { /* the server went away; the page says so */ }
    timer = setTimeout(more, REFETCH_MS);
  };
  source.addEventListener("sourceopen", more, { once: true });
  return stop;
}

/** The codec of a fragmented MP4, such as avc1.42c00b; empty before its first bytes are there. */
function codecOf(data) {
  for (let i = 0; i + 12 < data.length; i++) {
    if (data[i] === 0x61 && data[i + 1] === 0x76 && data[i + 2] === 0x63 && data[i + 3] === 0x43) {
      return "avc1." + [...data.slice(i + 5, i + 8)].map((one) => one.toString(16).padStart(2, "0")).join("");
    }
  }
  return "";
}
