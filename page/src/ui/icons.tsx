// Icons: strokes of one width on a grid of 24. Always beside a word, or in a button that has one for screen readers.

import type { ComponentChildren } from "preact";

function Icon({ children }: { children: ComponentChildren }) {
  return (
    <svg class="glyph" viewBox="0 0 24 24" width="18" height="18" fill="none" stroke="currentColor" stroke-width="1.75" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      {children}
    </svg>
  );
}

export const IconRun = () => <Icon><path d="M7 4.5v15l12-7.5z" fill="currentColor" stroke-width="1.25" /></Icon>;
export const IconStop = () => <Icon><rect x="6.5" y="6.5" width="11" height="11" rx="1.5" fill="currentColor" /></Icon>;
export const IconCode = () => <Icon><path d="m8 7-5 5 5 5M16 7l5 5-5 5M13.5 4.5l-3 15" /></Icon>;
export const IconBox = () => <Icon><path d="M12 3 20 7.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9" /></Icon>;
export const IconPulse = () => <Icon><path d="M3 12h4l3-8 4 16 3-8h4" /></Icon>;
export const IconShield = () => <Icon><path d="M12 3 5 5.5v6c0 4.5 3 7.6 7 9.5 4-1.9 7-5 7-9.5v-6zM9 12l2.2 2.2L15.5 10" /></Icon>;
export const IconSun = () => <Icon><circle cx="12" cy="12" r="4" /><path d="M12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6 7 7M17 17l1.4 1.4M5.6 18.4 7 17M17 7l1.4-1.4" /></Icon>;
export const IconMoon = () => <Icon><path d="M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5z" /></Icon>;
export const IconAuto = () => <Icon><circle cx="12" cy="12" r="8" /><path d="M12 4a8 8 0 0 1 0 16z" fill="currentColor" /></Icon>;
export const IconDownload = () => <Icon><path d="M12 4v11M7.5 11 12 15.5 16.5 11M5 20h14" /></Icon>;
export const IconPlus = () => <Icon><path d="M12 5v14M5 12h14" /></Icon>;
export const IconTrash = () => <Icon><path d="M5 7h14M10 7V4.5h4V7M7 7l.8 12.5h8.4L17 7M10.5 11v5M13.5 11v5" /></Icon>;
export const IconFolder = () => <Icon><path d="M3.5 6.5v12h17v-10h-8l-2-2z" /></Icon>;
export const IconFile = () => <Icon><path d="M6 3.5h8l4 4v13H6zM14 3.5v4h4" /></Icon>;
export const IconReload = () => <Icon><path d="M19.5 12a7.5 7.5 0 1 1-2.2-5.3L19.5 9M19.5 4.5V9H15" /></Icon>;
export const IconCopy = () => <Icon><rect x="8.5" y="8.5" width="11" height="11" rx="2" /><path d="M15.5 8.5v-4h-11v11h4" /></Icon>;
export const IconLink = () => <Icon><path d="M14 5h5v5M19 5l-8 8M11 6H6v12h12v-5" /></Icon>;
export const IconCheck = () => <Icon><path d="m5 12.5 4.5 4.5L19 7.5" /></Icon>;
export const IconSearch = () => <Icon><circle cx="11" cy="11" r="6.5" /><path d="m16 16 4.5 4.5" /></Icon>;
export const IconBack = () => <Icon><path d="M14.5 5.5 8 12l6.5 6.5" /></Icon>;
export const IconWarning = () => <Icon><path d="M12 4 2.8 19.5h18.4zM12 10v4.5M12 17v.2" /></Icon>;
export const IconSettings = () => <Icon><path d="M4 7h9M17 7h3M4 17h3M11 17h9" /><circle cx="15" cy="7" r="2" /><circle cx="9" cy="17" r="2" /></Icon>;
export const IconUpload = () => <Icon><path d="M12 16V5M7.5 9 12 4.5 16.5 9M5 20h14" /></Icon>;
export const IconSpeaker = () => <Icon><path d="M4 9.5v5h3.5L12 18.5v-13L7.5 9.5zM15.5 9a4 4 0 0 1 0 6M18 6.5a7.5 7.5 0 0 1 0 11" /></Icon>;
export const IconUp = () => <Icon><path d="M5 4h14M12 20V8M7 13l5-5 5 5" /></Icon>;
export const IconDown = () => <Icon><path d="M5 20h14M12 4v12M7 11l5 5 5-5" /></Icon>;
export const IconList = () => <Icon><path d="M9 6h11M9 12h11M9 18h11M4.5 6h.1M4.5 12h.1M4.5 18h.1" /></Icon>;
export const IconGauge = () => <Icon><path d="M4 18a8.5 8.5 0 1 1 16 0M12 14l4-5" /></Icon>;
export const IconUser = () => <Icon><circle cx="12" cy="8" r="3.5" /><path d="M5 20c.8-4 3.5-6 7-6s6.200 2 7 6" /></Icon>;
export const IconLeave = () => <Icon><path d="M14 4.500H5.500v15H14M10 12h10.500M17 8l4 4-4 4" /></Icon>;
