// Plays notes through the browser's own synthesizer: no file of sound is needed.

const SOFT = 0.02; // seconds in which a note comes and goes, so that nothing clicks
const LOUD = 0.16; // of one note; several together must not be too loud
const AHEAD = 0.1; // seconds between the press and the first note

/** The frequency of a pitch in hertz: the A above middle C has 440. */
export const frequency = (pitch) => 440 * 2 ** ((pitch - 69) / 12);

/** Seconds since now, by the sound; by the page's clock where a browser or a machine makes none. */
function clockOf(audio) {
  const [from, since] = [audio.currentTime, performance.now()];
  return () => (audio.currentTime > from ? audio.currentTime - from : (performance.now() - since) / 1000);
}

/**
 * Play notes.
 * @param notes [[start, pitch, end]] in steps
 * @param secondsPerStep of them
 * @param tell called with the step while it plays, and with null at the end
 * @returns a function that stops it
 */
export function play(notes, secondsPerStep, tell) {
  const audio = new AudioContext();
  const begin = audio.currentTime + AHEAD;
  const seconds = clockOf(audio);
  let frame = 0;
  let over = false;
  for (const [start, pitch, end] of notes) {
    const [from, to] = [begin + start * secondsPerStep, begin + end * secondsPerStep];
    const tone = new OscillatorNode(audio, { type: "triangle", frequency: frequency(pitch) });
    const loudness = new GainNode(audio, { gain: 0 });
    loudness.gain.setValueAtTime(0, from);
    loudness.gain.linearRampToValueAtTime(LOUD, from + SOFT);
    loudness.gain.setValueAtTime(LOUD, Math.max(from + SOFT, to - SOFT));
    loudness.gain.linearRampToValueAtTime(0, to);
    tone.connect(loudness).connect(audio.destination);
    tone.start(from);
    tone.stop(to);
  }
  const last = Math.max(...notes.map((note) => note[2]));
  const stop = () => {
    if (over) return;
    over = true;
    cancelAnimationFrame(frame);
    audio.close();
    tell(null);
  };
  const follow = () => {
    const step = Math.max(0, (seconds() - AHEAD) / secondsPerStep);
    if (step >= last) {
      stop();
      return;
    }
    tell(step);
    frame = requestAnimationFrame(follow);
  };
  follow();
  return stop;
}

/** Play a sound, a WAV file in base64; returns a function that stops it; tells the share that was heard, and null at its end. */
export function playSound(wav, tell) {
  const audio = new AudioContext();
  let frame = 0;
  const stop = () => {
    if (audio.state === "closed") return;
    cancelAnimationFrame(frame);
    audio.close();
    tell(null);
  };
  audio.decodeAudioData(Uint8Array.from(atob(wav), (letter) => letter.charCodeAt(0)).buffer).then((buffer) => {
    const source = new AudioBufferSourceNode(audio, { buffer });
    source.addEventListener("ended", stop);
    source.connect(audio.destination);
    source.start();
    const seconds = clockOf(audio);
    const follow = () => {
      if (seconds() > buffer.duration + AHEAD) return stop(); // where nothing sounds, nothing ends
      tell(seconds() / buffer.duration);
      frame = requestAnimationFrame(follow);
      return null;
    };
    follow();
  }, stop);
  return stop;
}
